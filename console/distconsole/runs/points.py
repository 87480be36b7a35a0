"""Metrics reduced over the ranks at equal steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from distconsole.model.run_events import Metric

MAX_PENDING_STEPS = 1024
"""Steps of one metric that wait for ranks; beyond that the oldest is reduced as it is."""

MAX_WAIT_SECONDS = 10.0
"""A step waits so long for a rank that is behind."""

SILENT_WINDOWS = 2
"""A rank that trained for so many windows without giving a metric does not give it."""

MAX_NAMES = 256


class Point(NamedTuple):
    """A value that one rank gave at one step; ``samples`` is its weight, None where unknown."""

    step: int
    value: float
    samples: float | None


def reduce_points(points: list[Point]) -> tuple[float, float | None]:
    """Return the sample-weighted mean and the samples if every rank gave its samples, else the plain mean.

    A value that is not finite counts: a mean that hides a NaN would say that all is well.
    """
    if all(point.samples is not None and 0 < point.samples < math.inf for point in points):
        samples = sum(point.samples or 0.0 for point in points)
        return sum(point.value * (point.samples or 0.0) for point in points) / samples, samples
    return sum(point.value for point in points) / len(points), None


class _RankProgress:
    def __init__(self) -> None:
        self.alive = True
        self.windows = 0
        self.last: dict[str, int] = {}
        """Metric -> last step for which this rank gave it, laps included."""
        self.laps: dict[str, int] = {}
        """Metric -> what is added to its steps because they began again."""

    def place(self, name: str, step: int) -> int:
        """Return where ``step`` lies on a line that never goes back.

        Scripts that count the steps of each epoch from 0 begin again; a loss that came late from a
        device is only a little behind.
        """
        begun = self.laps.get(name, 0)
        step += begun
        last = self.last.get(name, -1)
        if step > last:  # as nearly always
            self.last[name] = step
            return step
        if last > begun and step - begun <= (last - begun) // 2:
            self.laps[name] = last + 1
            step += last + 1 - begun
        self.last[name] = max(step, last)
        return step


class _Pending:
    def __init__(self, since: float, *, again: bool) -> None:
        self.points: dict[int, Point] = {}
        self.since = since
        self.again = again
        """The step was reduced before: scripts that report without making steps stay at one."""


class PointReducer:
    """Collects points by name and step until every rank that gives the metric has given it.

    Ranks may thin their points differently when steps are fast. A step that only some gave is
    left out while complete ones keep coming, because the mean of a changing subset is noise.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._ranks: dict[int, _RankProgress] = {}
        self._pending: dict[str, dict[int, _Pending]] = {}
        self._most: dict[str, int] = {}
        self._complete_at: dict[str, float] = {}
        self._done: dict[str, int] = {}
        self._blocking: dict[str, int] = {}
        """Metric -> a rank that its oldest step waited for when last asked: most often it still does."""
        self._silent: dict[str, set[int]] = {}
        """Metric -> ranks that were awaited in vain and never gave it."""
        self._bases: dict[str, int] = {}
        """Metric -> what is added to all ranks' steps, because they were started anew and began at 0."""
        self._unplaced: dict[str, int] = {}
        """Metric -> its last step before that, until the first one after it tells where it goes on."""

    def begin_again(self, t: float) -> Iterator[Metric]:
        """Yield what is left, for every rank starts anew: from step 0, or from that of a checkpoint."""
        yield from self.flush(t)
        self._unplaced.update(self._done)
        # Each is awaited from now on: its host may be the last to tell that it starts.
        self._ranks = {rank: _RankProgress() for rank in self._ranks}
        for kept in (self._most, self._complete_at, self._done):
            kept.clear()

    def rank_is(self, rank: int, t: float, *, alive: bool) -> Iterator[Metric]:
        """Note that a rank lives or ended, and yield what nobody else is awaited for now.

        A rank that ended is waited for no longer; its last window comes before its end.
        """
        progress = self._ranks.setdefault(rank, _RankProgress())
        if progress.alive == alive:
            return
        progress.alive = alive
        if not alive:
            for name in progress.last.keys() & self._most.keys():
                self._most[name] -= 1
            for name in list(self._pending):
                yield from self._ready(name, t)

    def add(
        self, rank: int, points: dict[str, list[Point]], t: float, *, trained: bool
    ) -> list[Metric]:
        """Take one rank's window and return what is complete now, by name in rising steps.

        Args:
            rank: Whose window it is.
            points: By metric name, in rising steps.
            t: The window's time, in seconds.
            trained: Whether it did steps in this window.
        """
        progress = self._ranks.setdefault(rank, _RankProgress())
        progress.windows += trained
        for name, given in points.items():
            if name not in self._pending and len(self._pending) >= MAX_NAMES:
                continue
            steps = self._pending.setdefault(name, {})
            done = self._done.get(name, -1)
            moved = bool(self._unplaced or self._bases)
            for point in given:
                step = progress.place(name, point.step)
                if moved:
                    step += self._base(name, point.step)
                if step < done:
                    continue
                pending = steps.get(step)
                if pending is None:
                    pending = steps[step] = _Pending(t, again=step == done)
                pending.points[rank] = point
        complete: list[Metric] = []
        for name in list(self._pending):
            complete += self._ready(name, t)
        return complete

    def _base(self, name: str, step: int) -> int:
        """Return what is added to a step; the first of an attempt decides, for all ranks alike.

        As for one rank's steps in ``place``: far behind means from the beginning, and the line goes
        on; else it is a step that was done before, and the line goes back to it.
        """
        last = self._unplaced.pop(name, None)
        if last is not None and step <= (last - self._bases.get(name, 0)) // 2:
            self._bases[name] = last + 1
        return self._bases.get(name, 0)

    def flush(self, t: float) -> Iterator[Metric]:
        """Yield what is left, as far as it is known."""
        for name, steps in self._pending.items():
            for step in sorted(steps):
                entry = steps.pop(step)
                if self._worth(name, entry, entry.since):
                    yield self._emit(name, step, entry, t)

    def _ready(self, name: str, t: float) -> Iterable[Metric]:
        steps = self._pending[name]
        if not steps or self._blocked_at(name, min(steps), t):
            return ()  # as after nearly every window
        return self._completed(name, steps, t)

    def _completed(self, name: str, steps: dict[int, _Pending], t: float) -> Iterator[Metric]:
        for step in sorted(steps):
            entry = steps[step]
            if self._blocked_at(name, step, t):
                return
            patient = self._is_patient(name, entry, t)
            awaited = self._awaited(name, step, entry)
            if awaited:
                self._blocking[name] = awaited[-1]
                if patient:
                    return
                never = [rank for rank in awaited if name not in self._ranks[rank].last]
                self._silent.setdefault(name, set()).update(never)
            del steps[step]
            self._done[name] = step
            if self._worth(name, entry, t):
                if len(entry.points) >= self._most.get(name, 0):
                    self._most[name] = len(entry.points)
                    self._complete_at[name] = t
                yield self._emit(name, step, entry, t)

    def _blocked_at(self, name: str, step: int, t: float) -> bool:
        """Whether the oldest step still waits, as it does after nearly every window."""
        entry = self._pending[name][step]
        # Who it waits for is asked first: that is the quicker question.
        return self._still_blocked(name, step, entry) and self._is_patient(name, entry, t)

    def _is_patient(self, name: str, entry: _Pending, t: float) -> bool:
        late = t - entry.since > MAX_WAIT_SECONDS
        return not late and len(self._pending[name]) <= MAX_PENDING_STEPS

    def _still_blocked(self, name: str, step: int, entry: _Pending) -> bool:
        """Whether the rank that was awaited last still is, so that no other need be asked about."""
        rank = self._blocking.get(name)
        progress = self._ranks.get(rank) if rank is not None else None
        if rank is None or progress is None or rank in entry.points or not progress.alive:
            return False
        return self._may_give(rank, progress, name, step, entry)

    def _awaited(self, name: str, step: int, entry: _Pending) -> list[int]:
        """Return the ranks that may still give ``name`` at ``step``."""
        return [
            rank
            for rank, progress in self._ranks.items()
            if progress.alive
            and rank not in entry.points
            and self._may_give(rank, progress, name, step, entry)
        ]

    def _may_give(
        self, rank: int, progress: _RankProgress, name: str, step: int, entry: _Pending
    ) -> bool:
        last = progress.last.get(name)
        if last is None:
            return progress.windows < SILENT_WINDOWS and rank not in self._silent.get(name, ())
        return last < step or (entry.again and last == step)

    def _worth(self, name: str, entry: _Pending, t: float) -> bool:
        """Whether what ranks gave at a step is more than thinning's leftovers; what is no number always is."""
        count = len(entry.points)
        if not all(math.isfinite(point.value) for point in entry.points.values()):
            return True
        living = sum(progress.alive for progress in self._ranks.values())
        if count >= min(self._most.get(name, 0), living):
            return True
        return t - self._complete_at.get(name, -math.inf) > MAX_WAIT_SECONDS / 2

    def _emit(self, name: str, step: int, entry: _Pending, t: float) -> Metric:
        points = list(entry.points.values())
        value, samples = reduce_points(points)
        finite = [point.value for point in points if math.isfinite(point.value)] or [value]
        return Metric(
            t=t,
            run=self._run,
            name=name,
            step=step,
            value=value,
            min=min(finite),
            max=max(finite),
            ranks=len(points),
            samples=samples,
        )
