"""What each option of a starter of ranks means for the launch. It splits no words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from distconsole.errors import UsageError
from distconsole.grammar.pasting.command import Pasted, port_number
from distconsole.grammar.pasting.splitting import split_options, split_words
from distconsole.grammar.pasting.starters import MPIRUN
from distconsole.model.requests import LauncherName

Meaning = Callable[[Pasted, str, str], Pasted]
"""From what is known, the option as it was typed and its value, to what is known then."""


def apply(found: Pasted, meaning: str, option: str, values: tuple[str, ...]) -> Pasted:
    """Return ``found`` with what one option means.

    Raises:
        UsageError: for a value that cannot be.
    """
    if meaning in PAIRS and len(values) == 2:
        return found.setting(PAIRS[meaning] + values[0], values[1])
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
    "hosts": lambda found, _, value: replace(found, hosts=value),
    "hostfile": lambda found, _, value: replace(found, hostfile=value),
    "workdir": lambda found, _, value: replace(found, workdir=value),
    "restarts": lambda found, option, value: replace(
        found, max_restarts=_number(option, value, 0)
    ),
    "export": _export,
    "slurm_export": _slurm_export,
    "mca_nic": lambda found, _, value: found.setting("OMPI_MCA_btl_tcp_if_include", value),
    "mpi_arguments": _mpi_arguments,
    "mpi": lambda found, _, __: replace(found, launcher=LauncherName.MPI),
    "nic": _nic,
    "address": lambda found, _, value: replace(found, address=value),
    "port": lambda found, option, value: replace(found, port=port_number(option, value)),
    "endpoint": _endpoint,
    "elastic": lambda found, option, value: found.noting(
        f"{option} {value}: only the hosts that are there are checked"
    ),
}
