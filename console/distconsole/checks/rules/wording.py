"""How findings name hosts, sizes, processes and long lists; and where hosts agree."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distconsole.checks.engine.results import Grade
from distconsole.checks.facts.evidence import by_key
from distconsole.checks.facts.node import Who
from distconsole.model.findings import Finding
from distconsole.model.names import is_whole, join_some
from distconsole.model.time_text import age_text

MAX_NAMED, MAX_LISTED = 6, 8
KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4


def name_hosts(hosts: Sequence[str]) -> str:
    """Return hosts as text, so many as can be read at a glance: ``a, b and 5 more``."""
    if len(hosts) <= MAX_NAMED:
        return ", ".join(hosts)
    return join_some(hosts, MAX_NAMED - 1)


def these_have(hosts: Sequence[str]) -> str:
    """Return hosts as ``name_hosts`` has them, with their verb: ``a has``, ``a, b have``."""
    return f"{name_hosts(hosts)} {'has' if len(hosts) == 1 else 'have'}"


def list_some(lines: Sequence[str]) -> str:
    more = len(lines) - MAX_LISTED
    return "\n".join([*lines[:MAX_LISTED], *([f"and {more} more"] if more > 0 else [])])


def size(count: int) -> str:
    """Return bytes as text: ``64 MiB``, ``1.5 GiB``."""
    if count >= TIB:
        return f"{count / TIB:.1f} TiB"
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"


def who(process: Who) -> str:
    """Return a process as text: ``python3 (pid 4242, uid 1001, 3 h)``."""
    known = [] if process.pid is None else [f"pid {process.pid}"]
    known += [] if process.uid < 0 else [f"uid {process.uid}"]
    known += [] if process.age_seconds is None else [age_text(process.age_seconds)]
    return f"{process.name or 'a process'} ({', '.join(known)})"


def numbers(values: Iterable[int]) -> str:
    """Return numbers as text: ``0, 1, 5``."""
    return ", ".join(map(str, values))


def get_number(values: Mapping[str, str | None], name: str) -> int | None:
    """Return a system's number given as text; None without one."""
    text = values.get(name) or ""
    return int(text) if is_whole(text) else None


T = TypeVar("T")
V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Dissent(Generic[V]):
    """Hosts that differ: values and hosts, rarest first; the ``majority``'s value, None in a tie; the others."""

    groups: tuple[tuple[V, tuple[str, ...]], ...]
    majority: V | None
    minority: tuple[str, ...]

    def told(self, what: str) -> str:
        """Return one line, minority first: ``h9 has torch 2.12.1, 13 of 14 hosts 2.13.0``."""
        total = sum(len(hosts) for _, hosts in self.groups)
        parts = []
        for index, (value, hosts) in enumerate(self.groups):
            if self.majority is not None and index == len(self.groups) - 1:
                parts.append(f"{len(hosts)} of {total} hosts have {value}")
            else:
                noun = f"{what} " if index == 0 else ""
                parts.append(f"{these_have(hosts)} {noun}{value}")
        return ", ".join(parts)


def dissent(values: Mapping[str, V]) -> Dissent[V] | None:
    """Return how hosts differ in their values; None when they agree."""
    hosts_of = by_key((value, host) for host, value in values.items())
    if len(hosts_of) < 2:
        return None
    groups = tuple((value, tuple(hosts)) for value, hosts in hosts_of.items())
    ordered = tuple(sorted(groups, key=lambda group: len(group[1])))
    value, hosts = ordered[-1]
    if 2 * len(hosts) <= len(values):
        return Dissent(ordered, None, tuple(values))
    majority = set(hosts)
    return Dissent(ordered, value, tuple(host for host in values if host not in majority))


def names_that_differ(values: Iterable[Mapping[str, Hashable]]) -> set[str]:
    first, *others = [each.items() for each in values] or [{}.items()]
    differing = set(first).union(*others) - set(first).intersection(*others)
    return {name for name, _ in differing}


def differ(
    find: Grade, what: str, values: Mapping[str, Hashable], **words: Any
) -> Iterator[Finding]:
    split = dissent(values)
    if split is not None:
        yield find(split.told(what), split.minority, **words)
