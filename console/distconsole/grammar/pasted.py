"""Reads a command that somebody would type to start a training: what it runs, with what, and where.

Text in, values out. It runs nothing and looks at no file. What it does not know it refuses by name,
because the words behind an unknown option cannot be told apart.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.starters import PYTHON, STARTERS, TORCHRUN, Starter
from distconsole.model.requests import LauncherName, PassArgs

ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*")
SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>", "2>>", "&>", "2>&1", "|&"})
WRAPPERS = {"nohup": 0, "time": 0, "exec": 0, "env": 0, "command": 0, "stdbuf": 1, "nice": 2}
"""Programs before a command that change nothing here, with how many words of options they may have."""
OTHER_STARTERS = ("accelerate", "deepspeed", "lightning", "fabric", "sbatch", "salloc", "jsrun")
TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic")
LAUNCH_MODULE = "torch.distributed.launch"
HOROVOD_MODULE = "horovod.runner.launch"
PORT_OF_TORCHRUN, PORT_OF_C10D = 29500, 29400
KNOWN_STARTERS = "python, torchrun, horovodrun, mpirun, mpiexec, srun and distconsole run"


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command says; what it does not is empty.

    Attributes:
        script: A path, or a module's name.
        starter: The program that starts the ranks, as it was typed.
        python: The interpreter, as it was typed.
        per_host: Ranks on each host, or ``gpu``; ``ranks`` are those of all hosts.
        hosts: As ``--hosts`` takes them; ``hostfile`` as ``--hostfile`` does.
        env: What is set in every rank; of the names in ``exported`` the value is that of the shell.
        address: Where the ranks are told to meet, and at which ``port``.
        ours: The words behind ``distconsole``, where it is a command of ours.
        notes: What a person should know about how it was read.
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
    pass_args: PassArgs | None = None
    max_restarts: int | None = None
    ours: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def noting(self, note: str) -> Pasted:
        """Return it with one more note."""
        return replace(self, notes=(*self.notes, note))

    def setting(self, name: str, value: str) -> Pasted:
        """Return it with one more variable; the rendezvous is read from some of them."""
        with_it = replace(self, env=(*self.env, (name, value)))
        if name == "MASTER_ADDR":
            return replace(with_it, address=value)
        if name == "MASTER_PORT":
            return replace(with_it, port=_port(f"{name}={value}", value))
        return with_it


def read_command(words: Sequence[str]) -> Pasted:
    """Return what a command says.

    Args:
        words: As a shell would split it; a single word with blanks is split here.

    Raises:
        UsageError: naming what is not understood.
    """
    if len(words) == 1 and _starts_something(words[0]):
        words = _split(words[0])
    return _command(_without_shell(list(words)), Pasted())


def _starts_something(text: str) -> bool:
    """Whether one word is a whole command in quotes, and not a script with a blank in its name."""
    first, *others = text.split() or [""]
    name = first.rpartition("/")[2]
    known = name in STARTERS or name in WRAPPERS or name in ("cd", "distconsole")
    return bool(others) and (known or bool(PYTHON_NAME.fullmatch(name) or ASSIGNMENT.match(first)))


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be split: {error}", "close the quote") from None


def _without_shell(words: list[str]) -> list[str]:
    """Take out what only a shell understands; a ``cd DIR &&`` before the command is kept for it."""
    start = 3 if words[:1] == ["cd"] and words[2:3] == ["&&"] else 0
    for index, word in enumerate(words[start:], start):
        if word == "&&":
            raise UsageError(
                "a check looks at one command, and && joins two",
                "give the one that starts the training; --setup takes what comes before it",
            )
        if word in SHELL_WORDS or re.fullmatch(r"[12&]?>>?\S+", word):
            return words[:index]
    return words


def _command(words: list[str], found: Pasted) -> Pasted:
    """Read a command, or what is left of one behind what starts it."""
    if words[:1] == ["cd"] and words[2:3] == ["&&"]:
        return _command(words[3:], replace(found, workdir=words[1]))
    if not words:
        raise UsageError("the command names no script", "such as: torchrun --nproc_per_node 2 train.py")
    word, rest = words[0], words[1:]
    name = word.rpartition("/")[2]
    assigned = ASSIGNMENT.fullmatch(word)
    if assigned is not None and "/" not in assigned[1]:
        return _command(rest, found.setting(assigned[1], assigned[2]))
    if name in WRAPPERS:
        return _command(_behind_wrapper(rest, WRAPPERS[name]), found)
    if name == "distconsole":
        if found != Pasted():
            raise UsageError(
                "distconsole starts the ranks itself, and nothing starts it",
                "check -- distconsole run … alone; variables by its --env",
            )
        return replace(found, ours=tuple(rest), starter="distconsole")
    if name in OTHER_STARTERS:
        raise UsageError(
            f"what {name} would start is not known here",
            f"give the command below it; understood are {KNOWN_STARTERS}",
        )
    if name in STARTERS:
        return _starter(STARTERS[name], name, rest, found)
    if PYTHON_NAME.fullmatch(name):
        return _python(word, rest, found)
    if word.startswith("-"):
        raise UsageError(
            f"{word} stands where the script should", "options of the check come before the script"
        )
    return replace(found, script=word, arguments=tuple(rest))


def _behind_wrapper(words: list[str], most: int) -> list[str]:
    left = most
    while words and words[0].startswith("-"):
        takes = left > 0 and re.fullmatch(r"-[a-z]", words[0]) is not None
        words, left = words[2 if takes else 1 :], left - 1
    return words


def _python(word: str, words: list[str], found: Pasted) -> Pasted:
    found = replace(found, python=word)
    options, rest = _options(PYTHON, _apart(words))
    for meaning, _, _ in options:
        if meaning == "text":
            raise UsageError("python -c has no script to check", "put the text into a file")
        if meaning == "module":
            return _module(rest, found)
    if rest[:1] == ["-"] or not rest:
        raise UsageError(f"{word} without a script", f"such as: {word} train.py")
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _apart(words: list[str]) -> list[str]:
    """Split letters that stand together (``-um``); what follows ``-m`` and the script is left alone."""
    for index, word in enumerate(words):
        if not word.startswith("-") or word == "-":
            break
        if re.fullmatch(r"-[a-zA-Z]{2,}", word) and word[1] not in "XW" and word != "-OO":
            apart = [f"-{letter}" for letter in word[1:]]
            return _until_module([*words[:index], *apart, *words[index + 1 :]])
    return _until_module(words)


def _until_module(words: list[str]) -> list[str]:
    """Let options end with ``-m``: what follows is the module's."""
    for index, word in enumerate(words):
        if word == "-m":
            return [*words[: index + 1], "--", *words[index + 1 :]]
        if not word.startswith("-"):
            break
    return words


def _module(words: list[str], found: Pasted) -> Pasted:
    if not words:
        raise UsageError("-m without a module's name", "such as: python -m pkg.train")
    name, rest = words[0], words[1:]
    if name in TORCHRUN_MODULES:
        return _starter(TORCHRUN, name, rest, found)
    if name == HOROVOD_MODULE:
        return _starter(STARTERS["horovodrun"], name, rest, found)
    return replace(found, script=name, module=True, arguments=tuple(rest))


Meanings = list[tuple[str, str, tuple[str, ...]]]
"""Options given: what it means, as it was typed, and its values."""


def _options(starter: Starter, words: list[str]) -> tuple[Meanings, list[str]]:
    """Split into options with their values, and what is left from the first word that is none."""
    found: Meanings = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        typed, equals, value = word.partition("=")
        values, meaning, glued = _known(starter, typed, word)
        if glued:
            found.append((meaning, typed, (glued,)))
            at += 1
        elif equals:
            found.append((meaning, typed, (value,)))
            at += 1
        else:
            given = tuple(words[at + 1 : at + 1 + values])
            if len(given) < values:
                raise UsageError(f"{starter.name} {typed} lacks its value", "")
            found.append((meaning, typed, given))
            at += 1 + values
    return found, words[at:]


def _known(starter: Starter, typed: str, word: str) -> tuple[int, str, str]:
    """Return an option's values, its meaning, and the value that is written at it."""
    options = starter.options
    name = typed.lstrip("-").replace("-", "_")
    one_dash = typed.startswith("-") and not typed.startswith("--")
    if name in options and (len(name) == 1 or not one_dash or not starter.dashes):
        return *options[name], ""
    if one_dash and word[1:2] in starter.glued and word[1:2] in options:
        return *options[word[1]], word[2:]
    if "=" in word:
        return 1, "nothing", ""
    near = nearest(name, options)
    long = "--" if near and len(near) > 1 else "-"
    raise UsageError(
        f"{starter.name} has no option {typed} that is known here, so what follows it cannot be told "
        "apart",
        f"did you mean {long}{near.replace('_', '-')}?" if near else "leave it out for the check",
    )


Reader = Callable[[Pasted, str, tuple[str, ...]], Pasted]


def _starter(starter: Starter, typed: str, words: list[str], found: Pasted) -> Pasted:
    """Read one starter's options, and then the command that it starts."""
    options, rest = _options(starter, words)
    outer = found.starter
    found = replace(found, starter=f"{outer} {typed}".strip())
    if starter is TORCHRUN:
        return _torchrun(typed, options, rest, found)
    launcher = {"horovodrun": LauncherName.HOROVOD, "mpirun": LauncherName.MPI}.get(
        starter.name, LauncherName.SLURM
    )
    if starter.name in ("horovodrun", "mpirun") or not outer:
        found = replace(found, launcher=launcher)
    for meaning, option, values in options:
        found = _taken(found, meaning, f"{typed} {option}", values)
    return _command(rest, found)


def _torchrun(typed: str, options: Meanings, rest: list[str], found: Pasted) -> Pasted:
    means = {meaning: values for meaning, _, values in options}
    old = typed == LAUNCH_MODULE and "own_env" not in means
    found = replace(
        found,
        launcher=LauncherName.TORCH if old else LauncherName.TORCHRUN,
        pass_args=PassArgs.TORCH_LAUNCH if old else None,
        per_host="1",
        address="",
        port=None,
    )
    for meaning, option, values in options:
        found = _taken(found, meaning, f"{typed} {option}", values)
    if "standalone" in means:
        found = replace(found, address="", port=None).noting(
            "torchrun --standalone is for one host: each host would train for itself"
        )
    elif found.port is None:
        dynamic = (means.get("backend") or ("static",))[0] == "c10d"
        found = replace(found, port=PORT_OF_C10D if dynamic else PORT_OF_TORCHRUN)
    if not rest:
        raise UsageError(f"{typed} without a script", f"such as: {typed} train.py")
    if "module" in means:
        return replace(found, script=rest[0], module=True, arguments=tuple(rest[1:]))
    if "command" in means:
        return _command(rest, found)
    return replace(found, script=rest[0], arguments=tuple(rest[1:]))


def _taken(found: Pasted, meaning: str, option: str, values: tuple[str, ...]) -> Pasted:
    """Return ``found`` with what one option means."""
    value = values[0] if values else ""
    match meaning:
        case "ranks":
            return replace(found, ranks=_number(option, value))
        case "per_host":
            return replace(found, per_host=_per_host(option, value))
        case "one_a_host":
            return replace(found, per_host="1")
        case "map":
            each = re.fullmatch(r"ppr:(\d+):node(:.*)?", value)
            return replace(found, per_host=each[1]) if each else found
        case "nnodes":
            return replace(found, nnodes=value.replace("-", ":"))
        case "hosts":
            return replace(found, hosts=value)
        case "hostfile":
            return replace(found, hostfile=value)
        case "workdir":
            return replace(found, workdir=value)
        case "restarts":
            return replace(found, max_restarts=_number(option, value, 0))
        case _:
            return _taken_rest(found, meaning, option, values)


def _taken_rest(found: Pasted, meaning: str, option: str, values: tuple[str, ...]) -> Pasted:
    value = values[0] if values else ""
    match meaning:
        case "export":
            name, equals, text = value.partition("=")
            if equals:
                return found.setting(name, text)
            return replace(found, exported=(*found.exported, name))
        case "slurm_export":
            for part in value.split(","):
                name, equals, text = part.partition("=")
                found = found.setting(name, text) if equals else found
            return found
        case "env" if len(values) == 2:
            return found.setting(*values)
        case "mca" if len(values) == 2:
            return found.setting(f"OMPI_MCA_{values[0]}", values[1])
        case "mca_nic":
            return found.setting("OMPI_MCA_btl_tcp_if_include", value)
        case "mpi_arguments":
            options, _ = _options(STARTERS["mpirun"], _split(value))
            for inner, typed, given in options:
                found = _taken(found, inner, f"--mpi-args {typed}", given)
            return found
        case "mpi":
            return replace(found, launcher=LauncherName.MPI)
        case "nic":
            first, comma, _ = value.partition(",")
            found = replace(found, nic=first)
            return found.noting(f"{option} names several, of which {first} is taken") if comma else found
        case "address":
            return replace(found, address=value)
        case "port":
            return replace(found, port=_port(option, value))
        case "endpoint":
            return _endpoint(found, option, value)
        case "elastic":
            return found.noting(f"{option} {value}: only the hosts that are there are checked")
        case _:
            return found


def _endpoint(found: Pasted, option: str, value: str) -> Pasted:
    match = re.fullmatch(r"\[?([^\[\]]*?)\]?(?::(\d+))?", value)
    if match is None:
        raise UsageError(f"{option} {value} is not HOST:PORT", "")
    port = _port(option, match[2]) if match[2] else None
    return replace(found, address=match[1], port=port)


def _number(option: str, value: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d{1,6}", value) or int(value) < least:
        raise UsageError(f"{option} {value} is not a number from {least}", "")
    return int(value)


def _per_host(option: str, value: str) -> str:
    if value in ("gpu", "auto"):
        return "gpu"
    if value == "cpu":
        raise UsageError(f"{option} cpu: a rank a processor is not known here", "give a number")
    return str(_number(option, value))


def _port(option: str, value: str) -> int | None:
    """Return the port; None for 0, which means any."""
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > 65535:
        raise UsageError(f"{option} {value} is not a port", "a number from 1 to 65535")
    return int(value) or None
