"""Where a metric first is no number: at which step, on which ranks.

Ranks tell of themselves in windows that come in any order, so the first NaN that is heard of need
not be the first there was: a gradient carries it to every rank within a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import itemgetter

from distconsole.model.run_events import RunFinding
from distconsole.runs.detectors.conclusions import NOT_FINITE
from distconsole.runs.detectors.ranks import Ranks, ranks_text
from distconsole.runs.points import MAX_NAMES, Point

PATIENCE_SECONDS = 3.0
"""So long the others' windows of the same moment are waited for."""

_VALUE = itemgetter(1)


class _Waiting:
    def __init__(self, since: float) -> None:
        self.since = since
        self.first: dict[int, tuple[Point, float]] = {}
        """Rank -> its first point that is no number, and the time of its window."""
        self.heard: dict[int, int] = {}
        """Rank -> the last step for which it has given the metric since."""


class NotFiniteWatch:
    """Tells once of each metric, when every living rank has told how it was at that step."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._waiting: dict[str, _Waiting] = {}
        self._told: set[str] = set()

    def add(self, rank: int, points: dict[str, list[Point]], t: float) -> Iterable[RunFinding]:
        """Take a rank's window of time ``t``, points in rising steps by metric, and return what is due."""
        for name, given in points.items():
            if name in self._waiting:
                self._take(self._waiting[name], rank, given, t)
            elif len(self._told) + len(self._waiting) >= MAX_NAMES:
                continue
            elif name not in self._told and _first_bad(given) is not None:
                self._waiting[name] = _Waiting(t)
                self._take(self._waiting[name], rank, given, t)
        return self.due(t) if self._waiting else ()

    def due(self, t: float) -> Iterator[RunFinding]:
        """Yield what need not wait any longer; at the end of an attempt, when ``t`` is infinite, all."""
        for name, waiting in list(self._waiting.items()):
            step = min(point.step for point, _ in waiting.first.values())
            late = t - waiting.since > PATIENCE_SECONDS
            if late or all(waiting.heard.get(rank, -1) >= step for rank in self._ranks.living):
                yield self._tell(name, step)

    def _take(self, waiting: _Waiting, rank: int, given: list[Point], t: float) -> None:
        bad = _first_bad(given)
        if bad is not None:
            waiting.first.setdefault(rank, (bad, t))
        if given:
            waiting.heard[rank] = given[-1].step

    def _tell(self, name: str, step: int) -> RunFinding:
        first = self._waiting.pop(name).first
        self._told.add(name)
        ranks = tuple(sorted(rank for rank, (point, _) in first.items() if point.step == step))
        everywhere = len(ranks) > 1 and {*self._ranks.living} <= {*ranks}
        who = f"all {len(ranks):,} ranks" if everywhere else ranks_text(ranks)
        value = first[ranks[0]][0].value
        return self._ranks.finding(
            # Of the windows, and not of when it was known: it is the same however they come.
            min(first[rank][1] for rank in ranks),
            NOT_FINITE,
            f"{name} is {value} at step {step} on {who}",
            ranks,
            seen=f"{name} = {value}",
            expected="a finite number",
            hint="look at the learning rate, at gradient clipping, and at this step's data",
        )


def _first_bad(given: list[Point]) -> Point | None:
    if math.isfinite(sum(map(_VALUE, given))):
        return None  # as nearly always; the sum of finite ones may be infinite
    return next((point for point in given if not math.isfinite(point.value)), None)
