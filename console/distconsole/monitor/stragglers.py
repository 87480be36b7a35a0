"""Which rank the others wait for, from the parts of its own steps. Pure; it cannot see inside backward.

In data-parallel training every rank's step takes equally long, because the fast ones wait in
backward for the gradients of the slow one. What tells them apart is the time that a rank spends
before it meets the others: waiting for data, forward, optimizer, and what is outside all of these.
"""

from __future__ import annotations

from operator import attrgetter
from statistics import median
from typing import NamedTuple

COMPARED_SECONDS, COMPARED_STEPS = 3.0, 2.0
"""A window is compared with those of others for so long, or so many of its steps where these are longer.

That is much less than ``PERSISTENT_SECONDS``: where one host's journal is read before another's, a
rank is not slow because its newest window stays the same.
"""
WARM_UP_WINDOWS = 3
PERSISTENT_SECONDS = 6
"""A rank must be the slow one in so many seconds running; a validation or a checkpoint is not that."""
MIN_EXCESS_MS = 1.0
MIN_EXCESS_OF_STEP = 0.1
MIN_BEHIND_STEPS = 2
"""So many steps can lie between windows that were cut at one moment."""


class Parts(NamedTuple):
    """Mean milliseconds a step of one rank's window; None where unknown."""

    step_ms: float
    data_ms: float | None
    forward_ms: float | None
    optimizer_ms: float | None
    t: float
    backward_ms: float | None = None
    step: int = -1

    @property
    def rest_ms(self) -> float | None:
        """What a step takes outside its parts; None where one but the data is unknown."""
        forward, backward, optimizer = self.forward_ms, self.backward_ms, self.optimizer_ms
        if forward is None or backward is None or optimizer is None:
            return None
        return max(0.0, self.step_ms - (forward + backward + optimizer) - (self.data_ms or 0.0))

    def fresh(self, t: float) -> bool:
        """Whether this is compared with what others do at ``t``."""
        return t - self.t <= max(COMPARED_SECONDS, COMPARED_STEPS * self.step_ms / 1000)


class Straggler(NamedTuple):
    """A rank that costs every step ``excess_ms``, in which part of it, and since when; -1 if unknown."""

    rank: int
    part: str
    own_ms: float
    median_ms: float
    step_ms: float
    since_step: int = -1

    @property
    def excess_ms(self) -> float:
        """Milliseconds a step over the median of the other ranks."""
        return self.own_ms - self.median_ms


class StragglerWatch:
    """Compares the ranks once a second; reports each slow rank once until it recovers."""

    def __init__(self) -> None:
        self._latest: dict[int, Parts] = {}
        self._windows: dict[int, int] = {}
        self._streak: dict[int, int] = {}
        self._began: dict[int, dict[int, int]] = {}
        """Rank -> the step at which each rank was when its streak began."""
        self._told: set[int] = set()
        self._second = 0

    def rank_ended(self, rank: int) -> None:
        """Forget a rank."""
        self._latest.pop(rank, None)
        self._streak.pop(rank, None)
        self._windows.pop(rank, None)
        self._began.pop(rank, None)

    def add(self, rank: int, parts: Parts) -> list[Straggler]:
        """Take one rank's window; return who is newly known to be slow."""
        self._windows[rank] = self._windows.get(rank, 0) + 1
        if self._windows[rank] > WARM_UP_WINDOWS:
            self._latest[rank] = parts
        if int(parts.t) <= self._second:
            return []
        self._second = int(parts.t)
        fresh = {r: p for r, p in self._latest.items() if p.fresh(parts.t)}
        return self._judge(fresh) if len(fresh) >= 2 else []

    def _judge(self, fresh: dict[int, Parts]) -> list[Straggler]:
        found: list[Straggler] = []
        slow = {s.rank: s for s in (_slowest(fresh, part) for part in PARTS) if s is not None}
        for rank in fresh:
            straggler = slow.get(rank)
            if straggler is None:
                self._streak[rank] = 0
                self._told.discard(rank)
                continue
            self._streak[rank] = self._streak.get(rank, 0) + 1
            if self._streak[rank] == 1:
                self._began[rank] = {each: parts.step for each, parts in fresh.items()}
            if straggler.part == STEP and not _lags(self._began[rank], fresh, rank):
                continue
            if self._streak[rank] >= PERSISTENT_SECONDS and rank not in self._told:
                self._told.add(rank)
                found.append(straggler._replace(since_step=self._began[rank][rank]))
        return found


STEP, REST = "step", "rest"
PARTS = (STEP, "data", "forward", "optimizer", REST)
_VALUE_OF = {part: attrgetter(f"{part}_ms") for part in PARTS}


def _slowest(fresh: dict[int, Parts], part: str) -> Straggler | None:
    """Return the one rank that stands out in ``part``; None if none or many do."""
    value_of = _VALUE_OF[part]
    values = {rank: value for rank, p in fresh.items() if (value := value_of(p)) is not None}
    if len(values) < 2:
        return None
    if max(values.values()) - min(values.values()) < MIN_EXCESS_MS:
        return None  # as most often: nobody exceeds the median by more
    rank = max(values, key=values.__getitem__)
    others = [value for other, value in values.items() if other != rank]
    typical = median(others)
    excess = values[rank] - typical
    if excess < MIN_EXCESS_MS:
        return None
    step_ms = median(parts.step_ms for parts in fresh.values())
    if excess < MIN_EXCESS_OF_STEP * step_ms:
        return None
    if excess < 2 * (max(others) - typical):
        return None  # the others differ as much among themselves
    if part == REST and not _waited_for(fresh, rank, excess):
        return None
    return Straggler(rank, part, values[rank], typical, step_ms)


def _lags(began: dict[int, int], fresh: dict[int, Parts], rank: int) -> bool:
    """Whether ``rank`` has made fewer steps than the others since ``began``.

    Ranks that wait for each other make equally many, however the windows cut their steps up.
    """
    if began[rank] < 0:
        return True  # nobody says which step it is
    others = [
        fresh[other].step - step
        for other, step in began.items()
        if other in fresh and other != rank
    ]
    if not others:
        return True
    behind = median(others) - (fresh[rank].step - began[rank])
    return behind >= max(MIN_BEHIND_STEPS, MIN_EXCESS_OF_STEP / 2 * max(others))


def _waited_for(fresh: dict[int, Parts], rank: int, excess_ms: float) -> bool:
    """Whether the others are in backward for longer, by about what ``rank`` has on top.

    Where a device computes, who is early waits outside the parts, when the script first asks for a
    result: then a long rest is that of a fast rank.
    """
    own = fresh[rank].backward_ms
    others = [p.backward_ms for r, p in fresh.items() if r != rank and p.backward_ms is not None]
    return own is not None and bool(others) and median(others) - own >= excess_ms / 2
