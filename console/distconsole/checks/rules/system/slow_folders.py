"""Which folders are slow on a host, next to the same folders on the others. Values only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import NamedTuple

from distconsole.checks.facts.script import Folder, SpeedFacts

FACTOR = 5.0
MIB = 1 << 20


class Aspect(NamedTuple):
    """One thing that is measured: how it is called, seconds it takes, and what is never slow.

    Attributes:
        cost: Seconds for one MiB, or for one file; None where it was not measured.
        harmless: A cost below which nobody minds, whatever the others have.
    """

    what: str
    cost: Callable[[Folder], float | None]
    harmless: float
    told: Callable[[float], str]


class Slow(NamedTuple):
    """A folder that is slow on a host."""

    host: str
    path: str
    what: str
    here: str
    others: str
    factor: float


def _rate_cost(rate: float | None) -> float | None:
    return None if not rate else MIB / rate


def _rate_told(cost: float) -> str:
    return f"{1 / cost:.0f} MiB/s" if cost < 1 else f"{1 / cost:.2f} MiB/s"


def _latency_told(cost: float) -> str:
    return f"{cost * 1e3:.1f} ms"


ASPECTS = (
    Aspect(
        "writing", lambda f: _rate_cost(f.write.rate if f.write else None), 1 / 100, _rate_told
    ),
    Aspect("reading", lambda f: _rate_cost(f.read.rate if f.read else None), 1 / 200, _rate_told),
    Aspect("a small file", lambda f: f.small.latency if f.small else None, 5e-3, _latency_told),
    Aspect("looking at a file", lambda f: f.look.latency if f.look else None, 2e-3, _latency_told),
)


def slow_folders(facts: Mapping[str, SpeedFacts]) -> Iterator[Slow]:
    """Yield what takes ``FACTOR`` times as long on a host as on the others, by their median."""
    for path in dict.fromkeys(path for found in facts.values() for path in found.folders):
        for aspect in ASPECTS:
            costs = {
                name: cost
                for name, found in facts.items()
                if path in found.folders and (cost := aspect.cost(found.folders[path])) is not None
            }
            for name, cost in costs.items():
                others = [each for other, each in costs.items() if other != name]
                usual = median(others) if others else cost
                if cost > max(FACTOR * usual, aspect.harmless):
                    here, there = aspect.told(cost), aspect.told(usual)
                    yield Slow(name, path, aspect.what, here, there, cost / usual)


def suspects(facts: Mapping[str, SpeedFacts]) -> dict[str, set[str]]:
    """Return by host the folders that look slow there."""
    found: dict[str, set[str]] = {}
    for slow in slow_folders(facts):
        found.setdefault(slow.host, set()).add(slow.path)
    return found
