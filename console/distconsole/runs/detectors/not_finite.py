"""Where a metric first is no number: at which step, on which ranks. Pure; it does not say why.

Ranks tell of themselves in windows that come in any order, so the first NaN that is heard of need
not be the first there was: a gradient carries it to every rank within a step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from distconsole.runs.points import MAX_NAMES, Point

PATIENCE_SECONDS = 3.0
"""So long the others' windows of the same moment are waited for."""

_VALUE = itemgetter(1)


class NotFinite(NamedTuple):
    """A metric that is no number: where that began, when, and on which ranks at that step."""

    name: str
    point: Point
    t: float
    ranks: tuple[int, ...]
    everywhere: bool


class _Waiting:
    __slots__ = ("first", "heard", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.first: dict[int, tuple[Point, float]] = {}
        """Rank -> its first point that is no number, and the time of its window."""
        self.heard: dict[int, int] = {}
        """Rank -> the last step for which it has given the metric since."""


class NotFiniteWatch:
    """Tells once of each metric, when every living rank has told how it was at that step."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Waiting] = {}
        self._told: set[str] = set()

    def add(
        self, rank: int, points: dict[str, list[Point]], living: Collection[int], t: float
    ) -> Iterable[NotFinite]:
        """Take a rank's window, and return what is due.

        Args:
            rank: Whose window it is.
            points: By metric name, in rising steps.
            living: The ranks that have not ended.
            t: The window's time, in seconds.
        """
        for name, given in points.items():
            if name in self._waiting:
                self._take(self._waiting[name], rank, given, t)
            elif len(self._told) + len(self._waiting) >= MAX_NAMES:
                continue
            elif name not in self._told and _first_bad(given) is not None:
                self._waiting[name] = _Waiting(t)
                self._take(self._waiting[name], rank, given, t)
        return self.due(living, t) if self._waiting else ()

    def due(self, living: Collection[int], t: float) -> Iterator[NotFinite]:
        """Yield what need not wait any longer."""
        for name, waiting in list(self._waiting.items()):
            step = min(point.step for point, _ in waiting.first.values())
            late = t - waiting.since > PATIENCE_SECONDS
            if late or all(waiting.heard.get(rank, -1) >= step for rank in living):
                yield self._tell(name, step, living)

    def flush(self, living: Collection[int]) -> Iterator[NotFinite]:
        """Yield what is left, as far as it is known."""
        yield from self.due(living, math.inf)

    def _take(self, waiting: _Waiting, rank: int, given: list[Point], t: float) -> None:
        bad = _first_bad(given)
        if bad is not None:
            waiting.first.setdefault(rank, (bad, t))
        if given:
            waiting.heard[rank] = given[-1].step

    def _tell(self, name: str, step: int, living: Collection[int]) -> NotFinite:
        first = self._waiting.pop(name).first
        self._told.add(name)
        ranks = tuple(sorted(rank for rank, (point, _) in first.items() if point.step == step))
        # Of the windows, and not of when it was known: it is the same however they come.
        t = min(first[rank][1] for rank in ranks)
        everywhere = len(ranks) > 1 and {*living} <= {*ranks}
        return NotFinite(name, first[ranks[0]][0], t, ranks, everywhere)


def _first_bad(given: list[Point]) -> Point | None:
    if math.isfinite(sum(map(_VALUE, given))):
        return None  # as nearly always; the sum of finite ones may be infinite
    return next((point for point in given if not math.isfinite(point.value)), None)
