"""The launch in a pasted command, and the part of each option."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from distconsole.errors import UsageError
from distconsole.grammar.pasting import starters
from distconsole.grammar.secrets import mask_text
from distconsole.model.requests import LauncherName, PassArgs

TASKS = ("ntasks", "gpus-per-task", "tres-per-task")
"""Of options of srun that say how many tasks there are."""


@dataclass(frozen=True, slots=True)
class Pasted:
    """The launch of a command; empty for unset parts.

    Attributes:
        starter: The program that starts the ranks, as it was typed.
        per_host: Ranks on each host, or ``gpu``; ``ranks`` are those of all hosts.
        hosts: As ``--hosts`` takes them; ``hostfile`` as ``--hostfile`` does.
        env: Variables of every rank; of the names in ``exported`` the value is that of the shell.
        address: The ranks' meeting point, and its ``port``; ``world_size`` is their number there.
        asks: What srun asks of Slurm, as typed.
        nodes, include, exclude: Which of the hosts DeepSpeed takes.
        settings: Options that count with another one: name, value, as typed.
        rows: Each option as it was typed, and its equivalent.
        notes: Differences to the command on the hosts themselves.
    """

    script: str = ""
    arguments: tuple[str, ...] = ()
    starter: str = ""
    module: bool = False
    launcher: LauncherName = LauncherName.AUTO
    python: str = ""
    per_host: str = ""
    ranks: int | None = None
    nnodes: str = ""
    hosts: str = ""
    hostfile: str = ""
    env: tuple[tuple[str, str], ...] = ()
    exported: tuple[str, ...] = ()
    workdir: str = ""
    nic: str = ""
    address: str = ""
    port: int | None = None
    world_size: str = ""
    pass_args: PassArgs | None = None
    max_restarts: int | None = None
    grace_seconds: float | None = None
    asks: tuple[str, ...] = ()
    nodes: int | None = None
    include: str = ""
    exclude: str = ""
    settings: tuple[tuple[str, str, str], ...] = ()
    ours: tuple[str, ...] = ()
    rows: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_one_task_a_host(self) -> bool:
        """Whether srun got no number of tasks. It then starts one task per host, unless the job asks for more."""
        told = any(each in word for word in self.asks for each in TASKS)
        return self.launcher is LauncherName.SLURM and not (self.ranks or self.per_host or told)

    def noting(self, note: str) -> Pasted:
        return replace(self, notes=(*self.notes, note))

    def telling(self, typed: str, becomes: str) -> Pasted:
        return replace(self, rows=(*self.rows, (typed, becomes)))

    def setting(self, name: str, value: str) -> Pasted:
        return replace(self, env=(*self.env, (name, value)))

    def changing(self, typed: str, name: str, value: str) -> Pasted:
        """Set a variable in place of an earlier value, and tell it."""
        env = tuple(pair for pair in self.env if pair[0] != name)
        return replace(self, env=env).setting(name, value).telling(typed, f"--env {name}={value}")

    def retelling(self, becomes: Callable[[str, str], str]) -> Pasted:
        """Change what is told of each option, from what was typed and told."""
        rows = tuple((typed, becomes(typed, told)) for typed, told in self.rows)
        return replace(self, rows=rows)


def export(found: Pasted, shown: str, word: str, what: str = "") -> Pasted:
    """Return ``found`` with a variable that a command gives its ranks, as NAME=VALUE or as the shell's own.

    What a run says itself of its ranks, it says: where they meet, and how they are numbered.
    """
    name, equals, value = word.partition("=")
    if name in MEETS_BY and equals and "$" in value:
        return found.telling(shown, becomes(MEETS_BY[name]))
    starters.refuse_variable(what or f"{name}=…", value)
    if name in MEETS_BY and equals:
        meets = port_number(name, value) if name == "MASTER_PORT" else value
        found = replace(found, **{MEETS_BY[name]: meets})  # type: ignore[arg-type]
    if name in OWN_NAMES:
        return found.telling(shown, OWN_NAMES[name])
    if equals:
        return found.setting(name, value).telling(shown, f"--env {word}")
    if name in OF_EACH_HOST:
        return found.telling(shown, f"nothing: each host has its own; else --env {name}=VALUE")
    if name not in os.environ:
        return found.telling(shown, "nothing: it is not set here")
    shown_value = mask_text(f"{name}={os.environ[name]}")
    return replace(found, exported=(*found.exported, name)).telling(shown, f"--env {shown_value}")


def port_number(option: str, value: str) -> int | None:
    """Return the port; None for 0, which means any; raises UsageError if it is none."""
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > 65535:
        raise UsageError(f"{option} {value} is not a port", "a number from 1 to 65535")
    return int(value) or None


def apply(found: Pasted, starter: starters.Starter, given: starters.Given) -> Pasted:
    """Return ``found`` with one option applied; raises UsageError for one that means nothing here."""
    option, typed = given.option.of_value(given.value), f"{starter.name} {given.typed}"
    shown = " ".join(given.words)
    if option.kind == starters.REFUSED:
        why, _, cure = option.text.partition(" | ")
        raise UsageError(f"{starter.name} {shown}: {why}", cure)
    if option.kind == starters.NOTHING:
        return found.telling(shown, f"nothing: {option.text}")
    if option.text in MEETING and "$" in given.value:
        return found.telling(shown, becomes(option.text))
    if option.text not in EXPORTS:
        starters.refuse_variable(typed, given.value)
    if option.kind == starters.ON or option.text == "use":
        found = replace(found, settings=(*found.settings, (given.name, given.value, shown)))
        return found if option.kind == starters.ON else found.telling(shown, becomes("use"))
    if option.kind == starters.SETS:
        name, equals, value = option.text.partition("=")
        value = value if equals else given.value
        return found.setting(name, value).telling(shown, f"--env {name}={value}")
    if option.text in EXPORTS:
        return EXPORTS[option.text](found, given, typed)
    if option.kind == starters.ASKS:
        return replace(found, asks=(*found.asks, *given.words)).telling(shown, "asked of Slurm")
    told = _apply_meaning(found, typed, given, option.text)
    if starter.name == "srun" and option.text in OF_SLURM:
        return replace(told, asks=(*told.asks, *given.words)).telling(shown, OF_SLURM[option.text])
    return told.telling(shown, _what_became(told, option.text, given))


def _what_became(told: Pasted, meaning: str, given: starters.Given) -> str:
    match meaning:
        case "per_host" | "one_a_host" | "map" if told.per_host:
            return f"--nproc {told.per_host}"
        case "map":
            return "nothing: ranks follow the order of the hosts"
        case "slots":
            return f"--hosts {told.hosts}"
        case "lt_devices":
            return f"--nproc {told.per_host}, and LT_DEVICES={given.value} in every rank"
        case "fusion":
            return "--env {}={}".format(*told.env[-1])
        case "devices" if given.value == "all":
            return "nothing: a rank sees every GPU of its host"
        case "nic":
            others = ", the first of them" if "," in given.value else ""
            return f"--nic {told.nic}{others}"
        case _:
            return becomes(meaning, given.values)


def becomes(meaning: str, values: Sequence[str] = ()) -> str:
    """Return the equivalent of a meaning's option; without ``values`` for any of them."""
    text: str = starters.tables()["becomes"][meaning]
    joined = "=".join(values) if len(values) == 2 else " ".join(values)
    return re.sub(r"\{([^}]*)\}", lambda place: joined if values else place[1], text)


def _apply_meaning(found: Pasted, typed: str, given: starters.Given, meaning: str) -> Pasted:
    if meaning in PAIRS:
        parts = given.values if len(given.values) == 2 else given.value.split("=", 1)
        if len(parts) < 2:
            raise UsageError(f"{typed} lacks its value", f"{given.typed} NAME VALUE")
        name, value = parts
        if meaning == "mca" and name.startswith(("plm", "orte_rsh")):
            raise UsageError(
                f"{typed} {name}: the agents start mpirun's daemons",
                "leave it out; ssh is told by --hosts",
            )
        return found.setting(PAIRS[meaning] + name, value)
    if meaning in AS_TYPED:
        changes: dict[str, Any] = {meaning: given.value}
        return replace(found, **changes)
    reader = MEANINGS.get(meaning)
    return found if reader is None else reader(found, typed, given.value)


Meaning = Callable[[Pasted, str, str], Pasted]
"""From the launch so far, the option as it was typed and its value, to the launch with it."""


def _map(found: Pasted, option: str, value: str) -> Pasted:
    each = re.fullmatch(r"ppr:(\d+):node(?::(?:no)?oversubscribe)?", value, re.IGNORECASE)
    if each is None and value not in ("slot", "core", "hwthread"):
        raise UsageError(
            f"{option} {value}: ranks follow the order of the hosts", "slot, or ppr:N:node"
        )
    return replace(found, per_host=each[1]) if each else found


def _slots(found: Pasted, _option: str, value: str) -> Pasted:
    """Return ``found`` with mpirun's list of hosts, in which a host that is named twice has two slots."""
    counts = Counter(value.split(","))
    more = any(count > 1 for count in counts.values())
    named = (f"{host}:{count}" if more else host for host, count in counts.items())
    return replace(found, hosts=",".join(named))


def _exports(found: Pasted, given: starters.Given, typed: str) -> Pasted:
    for word in given.value.split(","):
        found = export(found, f"{given.typed} {word}", word, typed)
    return found


def _slurm_export(found: Pasted, given: starters.Given, typed: str) -> Pasted:
    """Return ``found`` with the variables of ``--export``; those of the shell go to the job that Slurm starts."""
    found = replace(found, asks=(*found.asks, *given.words))
    told = [part for part in given.value.split(",") if part not in ("ALL", "NONE", "NIL")]
    if not told:
        return found.telling(" ".join(given.words), "asked of Slurm")
    return _exports(found, replace(given, values=(",".join(told),)), typed)


def _mpi_arguments(found: Pasted, _option: str, value: str) -> Pasted:
    mpirun = starters.starter_of("mpirun")
    for given in starters.split_options(mpirun, starters.split_words(value))[0]:
        found = apply(found, mpirun, given)
    return found


def _nic(found: Pasted, option: str, value: str) -> Pasted:
    first, comma, _ = value.partition(",")
    found = replace(found, nic=first)
    return found.noting(f"{option} names several, of which {first} is taken") if comma else found


def _endpoint(found: Pasted, option: str, value: str) -> Pasted:
    match = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::(\d+))?", value)
    if match is None:
        raise UsageError(f"{option} {value} is not HOST:PORT", "such as: server1:29400")
    return replace(
        found, address=match[1], port=port_number(option, match[2]) if match[2] else None
    )


def whole_number(option: str, value: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise UsageError(f"{option} {value} is not a number from {least}", "such as: 2")
    return int(value)


def _per_host(found: Pasted, option: str, value: str) -> Pasted:
    if value == "cpu":
        raise UsageError(f"{option} cpu: a rank a processor is not known here", "give a number")
    gpu = value in ("gpu", "auto", "-1")  # auto of torchrun: processors, where there is no GPU
    return replace(found, per_host="gpu" if gpu else str(whole_number(option, value)))


def _devices(found: Pasted, option: str, value: str) -> Pasted:
    if value == "all":
        return found
    if not re.fullmatch(r"\d+(,\d+)*", value):
        raise UsageError(f"{option} {value} is no list of GPUs", "such as: 0,1")
    return found.setting("CUDA_VISIBLE_DEVICES", value)


def _lightning_devices(found: Pasted, option: str, value: str) -> Pasted:
    count = str(len(value.strip(",").split(","))) if "," in value else value
    found = _per_host(found, option, "1" if count == "auto" else count)
    return found.setting("LT_DEVICES", value)


def _nodes(found: Pasted, option: str, value: str) -> Pasted:
    if not re.fullmatch(r"\d{1,9}([:-]\d{1,9})?", value):
        raise UsageError(f"{option} {value} is not a number of hosts", "such as: 2, or MIN:MAX")
    return replace(found, nnodes=value.replace("-", ":"))


PAIRS: Mapping[str, str] = {
    "env": "",
    "mca": "OMPI_MCA_",
    "prtemca": "PRTE_MCA_",
    "pmixmca": "PMIX_MCA_",
}
"""Options of a name and a value, and the prefix of the variable for it."""

MEANINGS: Mapping[str, Meaning] = {
    "ranks": lambda found, option, value: replace(found, ranks=whole_number(option, value)),
    "per_host": _per_host,
    "slots": _slots,
    "one_a_host": lambda found, _, __: replace(found, per_host="1"),
    "map": _map,
    "nnodes": _nodes,
    "nodes": lambda found, option, value: replace(found, nodes=whole_number(option, value)),
    "max_restarts": lambda found, option, value: replace(
        found, max_restarts=whole_number(option, value, 0)
    ),
    "grace": lambda found, option, value: replace(
        found, grace_seconds=float(whole_number(option, value.partition(".")[0]))
    ),
    "mca_nic": lambda found, _, value: found.setting("OMPI_MCA_btl_tcp_if_include", value),
    "mpi_arguments": _mpi_arguments,
    "mpi": lambda found, _, __: replace(found, launcher=LauncherName.MPI),
    "nic": _nic,
    "fusion": lambda found, option, value: found.setting(
        "HOROVOD_FUSION_THRESHOLD", str(whole_number(option, value, 0) << 20)
    ),
    "devices": _devices,
    "lt_devices": _lightning_devices,
    "port": lambda found, option, value: replace(found, port=port_number(option, value)),
    "endpoint": _endpoint,
}
EXPORTS: Mapping[str, Callable[[Pasted, starters.Given, str], Pasted]] = {
    "export": lambda found, given, typed: export(found, " ".join(given.words), given.value, typed),
    "exports": _exports,
    "slurm_export": _slurm_export,
}
"""Meanings that export variables, and tell a row of each."""

NUMBERED = "nothing: ranks and hosts are numbered in their order"
MEETS_BY = {"MASTER_ADDR": "address", "MASTER_PORT": "port", "WORLD_SIZE": "world_size"}
"""Variables of the ranks' meeting point, and the meaning of each."""
OWN_NAMES = {
    "MASTER_ADDR": becomes("address"),
    "WORLD_SIZE": becomes("world_size"),
    **dict.fromkeys(("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"), NUMBERED),
    "LOCAL_WORLD_SIZE": becomes("world_size"),
}
"""Variables that a run sets itself, each rank its own: one value for all would be wrong."""
OF_EACH_HOST = ("PATH", "LD_LIBRARY_PATH")
"""Variables whose value on this machine would break another one."""
OF_SLURM = {
    "ranks": "asked of Slurm; in a job, --ranks",
    "per_host": "asked of Slurm; in a job, --nproc",
    "nnodes": "asked of Slurm; in a job, --nnodes",
    "hosts": "asked of Slurm; in a job, --hosts",
    "workdir": "asked of Slurm, and --workdir",
}
MEETING = frozenset({"address", "port", "endpoint", "backend"})
"""Meanings of the ranks' meeting point, which a run finds by itself."""

AS_TYPED = frozenset({"hosts", "hostfile", "workdir", "address", "include", "exclude"})
"""Meanings that are fields of a command, which hold the value."""
