"""Do hosts agree in something, and which of them do."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distconsole.checks.engine.results import Grade
from distconsole.checks.rules.wording import these_have
from distconsole.model.findings import Finding

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Dissent(Generic[V]):
    """Hosts that do not agree.

    Attributes:
        groups: Each value and its hosts, the rarest first, the majority last.
        majority: The value of more than half of the hosts; None in a tie.
        minority: The hosts that have another value; all hosts in a tie.
    """

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
    return Dissent(ordered, value, tuple(host for host in values if host not in hosts))


def differ(
    find: Grade, what: str, values: Mapping[str, Hashable], **words: Any
) -> Iterator[Finding]:
    """Yield the finding that hosts differ in ``what``, of those that are in the minority, if any do."""
    split = dissent(values)
    if split is not None:
        yield find(split.told(what), split.minority, **words)


def by_key(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key, in their order."""
    found: dict[K, list[T]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found
