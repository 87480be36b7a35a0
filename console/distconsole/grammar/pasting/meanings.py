"""What each option of a starter of ranks means for the launch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.pasting.starters import MPIRUN, Starter
from distconsole.model.requests import LauncherName, PassArgs


@dataclass(frozen=True, slots=True)
class Pasted:
    """What a command says; what it does not is empty.

    Attributes:
        starter: The program that starts the ranks, as it was typed.
        per_host: Ranks on each host, or ``gpu``; ``ranks`` are those of all hosts.
        hosts: As ``--hosts`` takes them; ``hostfile`` as ``--hostfile`` does.
        env: What is set in every rank; of the names in ``exported`` the value is that of the shell.
        address: Where the ranks are told to meet, and at which ``port``.
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
        return replace(self, notes=(*self.notes, note))

    def setting(self, name: str, value: str) -> Pasted:
        """Return it with one more variable; the rendezvous is read from some of them."""
        with_it = replace(self, env=(*self.env, (name, value)))
        if name == "MASTER_ADDR":
            return replace(with_it, address=value)
        if name == "MASTER_PORT":
            return replace(with_it, port=port_number(name, value))
        return with_it


def port_number(option: str, value: str) -> int | None:
    """Return the port; None for 0, which means any; raises UsageError if it is none."""
    if not re.fullmatch(r"\d{1,5}", value) or int(value) > 65535:
        raise UsageError(f"{option} {value} is not a port", "a number from 1 to 65535")
    return int(value) or None


Meanings = list[tuple[str, str, tuple[str, ...]]]
"""Options given: what it means, as it was typed, and its values."""


def split_options(starter: Starter, words: list[str]) -> tuple[Meanings, list[str]]:
    """Split into options with their values, and what is left from the first word that is none.

    Raises UsageError for an option that is not known, or lacks its value.
    """
    found: Meanings = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        typed, equals, value = word.partition("=")
        values, meaning, glued = _find_option(starter, typed, word)
        if glued:
            found.append((meaning, typed, (glued,)))
            at += 1
        elif equals:
            found.append((meaning, typed, (value,)))
            at += 1
        else:
            given = tuple(words[at + 1 : at + 1 + values])
            if len(given) < values:
                raise UsageError(f"{starter.name} {typed} lacks its value", f"{typed} VALUE")
            found.append((meaning, typed, given))
            at += 1 + values
    return found, words[at:]


def _find_option(starter: Starter, typed: str, word: str) -> tuple[int, str, str]:
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


def split_words(text: str) -> list[str]:
    """Return the words of ``text`` as a shell has them; raises UsageError if a quote is open."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be split: {error}", "close the quote") from None


Meaning = Callable[[Pasted, str, str], Pasted]
"""From what is known, the option as it was typed and its value, to what is known then."""


def apply(found: Pasted, meaning: str, option: str, values: tuple[str, ...]) -> Pasted:
    """Return ``found`` with what one option means.

    Raises UsageError for a value that cannot be.
    """
    if meaning in PAIRS and len(values) == 2:
        return found.setting(PAIRS[meaning] + values[0], values[1])
    if meaning in AS_TYPED:
        changes: dict[str, Any] = {meaning: values[0]}
        return replace(found, **changes)
    reader = MEANINGS.get(meaning)
    return found if reader is None else reader(found, option, values[0] if values else "")


def _map(found: Pasted, _option: str, value: str) -> Pasted:
    each = re.fullmatch(r"ppr:(\d+):node(:.*)?", value)
    return replace(found, per_host=each[1]) if each else found


def _export(found: Pasted, _option: str, value: str) -> Pasted:
    name, equals, text = value.partition("=")
    if equals:
        return found.setting(name, text)
    return replace(found, exported=(*found.exported, name))


def _slurm_export(found: Pasted, _option: str, value: str) -> Pasted:
    for part in value.split(","):
        name, equals, text = part.partition("=")
        found = found.setting(name, text) if equals else found
    return found


def _mpi_arguments(found: Pasted, option: str, value: str) -> Pasted:
    options, _ = split_options(MPIRUN, split_words(value))
    for meaning, typed, values in options:
        found = apply(found, meaning, f"{option} {typed}", values)
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


def _number(option: str, value: str, least: int = 1) -> int:
    if not re.fullmatch(r"\d{1,6}", value) or int(value) < least:
        raise UsageError(f"{option} {value} is not a number from {least}", "such as: 2")
    return int(value)


def _per_host(found: Pasted, option: str, value: str) -> Pasted:
    if value == "cpu":
        raise UsageError(f"{option} cpu: a rank a processor is not known here", "give a number")
    gpu = value in ("gpu", "auto")
    return replace(found, per_host="gpu" if gpu else str(_number(option, value)))


PAIRS: Mapping[str, str] = {"env": "", "mca": "OMPI_MCA_"}
"""Options of a name and a value, and what the variable of that name begins with."""

MEANINGS: Mapping[str, Meaning] = {
    "ranks": lambda found, option, value: replace(found, ranks=_number(option, value)),
    "per_host": _per_host,
    "one_a_host": lambda found, _, __: replace(found, per_host="1"),
    "map": _map,
    "nnodes": lambda found, _, value: replace(found, nnodes=value.replace("-", ":")),
    "max_restarts": lambda found, option, value: replace(
        found, max_restarts=_number(option, value, 0)
    ),
    "export": _export,
    "slurm_export": _slurm_export,
    "mca_nic": lambda found, _, value: found.setting("OMPI_MCA_btl_tcp_if_include", value),
    "mpi_arguments": _mpi_arguments,
    "mpi": lambda found, _, __: replace(found, launcher=LauncherName.MPI),
    "nic": _nic,
    "port": lambda found, option, value: replace(found, port=port_number(option, value)),
    "endpoint": _endpoint,
    "elastic": lambda found, option, value: found.noting(
        f"{option} {value}: only the hosts that are there are checked"
    ),
}
AS_TYPED = frozenset({"hosts", "hostfile", "workdir", "address"})
"""Meanings that are fields of a command, which hold the value."""
