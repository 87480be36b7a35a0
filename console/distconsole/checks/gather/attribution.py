"""From broken connections to culprits: one dead host is one verdict, whatever number of peers misses it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

Pair = tuple[str, str]
"""A directed pair of hosts: from, to."""

MIN_PEERS = 2
"""With fewer peers a bad host cannot be told from a bad link."""

SLOW_SHARE = 0.7
"""Slower than this share of the median is slow; healthy links vary by less (measured)."""


class Direction(StrEnum):
    """Which connections of a host fail."""

    BOTH = "both"
    INTO = "into"
    OUT_OF = "out of"


@dataclass(frozen=True, slots=True)
class BlamedHost:
    """A host that explains all failures at it; ``pairs`` are those."""

    host: str
    direction: Direction
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """The faulty ones: ``hosts``, worst first, ``links`` both ways, ``one_way`` pairs; or unclear (``everyone``)."""

    hosts: tuple[BlamedHost, ...]
    links: tuple[Pair, ...]
    one_way: tuple[Pair, ...]
    everyone: tuple[str, ...] = ()

    @property
    def culprits(self) -> list[str]:
        """All hosts that stand in it, those first that explain most."""
        pairs = (name for pair in (*self.links, *self.one_way) for name in pair)
        return list(dict.fromkeys((*self.everyone, *(host.host for host in self.hosts), *pairs)))


def blame(tried: Iterable[Pair], broken: Iterable[Pair]) -> Blame:
    """Explain broken pairs by as few hosts as possible, greedily, and the rest by links.

    A host is blamed for a direction in which none of its tried pairs works (with at least two
    peers), or, as a whole, when at least half of its pairs fail and more than of any other host.
    """
    left = dict.fromkeys(broken)
    open_pairs = set(tried) | left.keys()
    everyone = tuple(dict.fromkeys(name for pair in left for name in pair))
    if len(everyone) > MIN_PEERS and len(left) == len(open_pairs):
        return Blame((), (), (), everyone)
    blamed: list[BlamedHost] = []
    while left:
        worst = _worst(open_pairs, left)
        if worst is None:
            break
        blamed.append(worst)
        for pair in worst.pairs:
            del left[pair]
        open_pairs -= set(worst.pairs)
    places = {pair: place for place, pair in enumerate(left)}
    links = tuple(pair for pair in left if places[pair] < places.get(pair[::-1], 0))
    return Blame(tuple(blamed), links, tuple(pair for pair in left if pair[::-1] not in left))


def cover(broken: Iterable[Pair]) -> dict[str, tuple[Pair, ...]]:
    """Explain pairs that work in part by hosts, greedily: by who stands in more of them than anybody else.

    Not every pair of a host with some blocked ports shows it, so that ``blame`` would ask too much.
    Without such a host, a pair is attributed to its target.
    """
    left = list(dict.fromkeys(broken))
    found: dict[str, tuple[Pair, ...]] = {}
    while left:
        counts = Counter(name for pair in left for name in pair).most_common(2)
        name, most = counts[0]
        if most == counts[1][1]:
            name = left[0][1]
            pairs = tuple(pair for pair in left if pair[1] == name)
        else:
            pairs = tuple(pair for pair in left if name in pair)
        found[name] = (*found.get(name, ()), *pairs)
        left = [pair for pair in left if pair not in pairs]
    return found


def _worst(tried: Iterable[Pair], broken: Iterable[Pair]) -> BlamedHost | None:
    into, out_of = Counter(pair[1] for pair in tried), Counter(pair[0] for pair in tried)
    lost: dict[str, tuple[list[Pair], list[Pair]]] = {}
    for pair in broken:
        lost.setdefault(pair[0], ([], []))[1].append(pair)
        lost.setdefault(pair[1], ([], []))[0].append(pair)
    verdicts = (_verdict(host, into[host], out_of[host], *pairs) for host, pairs in lost.items())
    return max(filter(None, verdicts), key=lambda found: len(found.pairs), default=None)


def _verdict(
    host: str, tried_into: int, tried_out: int, into: list[Pair], out: list[Pair]
) -> BlamedHost | None:
    all_into = len(into) == tried_into >= MIN_PEERS
    all_out = len(out) == tried_out >= MIN_PEERS
    if all_into == all_out:
        half = (tried_into + tried_out) / 2
        most = len(into) + len(out) >= max(3.0, half) and half > MIN_PEERS
        both = BlamedHost(host, Direction.BOTH, (*into, *out))
        return both if all_into or most else None
    if all_into:
        return BlamedHost(host, Direction.INTO, tuple(into))
    return BlamedHost(host, Direction.OUT_OF, tuple(out))


def usual(values: Mapping[Pair, float], best: Callable[[float, float], float]) -> float:
    """Return what is usual: the median over the hosts of each one's best value, either way.

    The median over all pairs would be a slow host's own value among three hosts.

    Args:
        values: A rate or a time for each pair; at least one.
        best: ``max`` of rates, ``min`` of times.
    """
    best_of: dict[str, float] = {}
    for pair, value in values.items():
        for host in pair:
            best_of[host] = best(best_of.get(host, value), value)
    return median(best_of.values())
