"""Metrics reduced over the ranks at equal steps, and the first NaN of each."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter, mul
from typing import NamedTuple, TypeAlias

from distconsole.model.run_events import Metric, RunFinding
from distconsole.rpc.frames import MetricPoint
from distconsole.runs.detectors.conclusions import NOT_FINITE
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text
from distconsole.runs.pace import MAX_WAIT_SECONDS

MAX_PENDING_STEPS = 1024
"""Steps of one metric that wait for ranks; beyond that the oldest is reduced as it is."""

SILENT_WINDOWS = 2
"""A rank that trained for this many windows without reporting a metric that others report does not report it."""

MAX_NAMES = 256

PATIENCE_SECONDS = 3.0
"""Longest wait for the windows of other ranks if a metric is NaN."""


class Point(NamedTuple):
    """A ``MetricPoint`` with a value."""

    step: int
    value: float
    samples: float | None


Given: TypeAlias = Point | MetricPoint


def reduce_points(points: Iterable[Point]) -> tuple[float, float | None]:
    """Return the sample-weighted mean and the samples if every rank gave its samples, else the plain mean.

    NaN and infinity count: a mean that hides them would look healthy.
    """
    _, values, samples = zip(*points, strict=True)
    weights = [each for each in samples if each is not None and 0 < each < math.inf]
    if len(weights) < len(values):
        return sum(values) / len(values), None
    return sum(map(mul, values, weights)) / sum(weights), sum(weights)


_value_of = itemgetter(1)  # of a ``Point``, faster than by its name


class _RankProgress:
    def __init__(self) -> None:
        self.alive = True
        self.windows = 0
        self.awaited: dict[str, int] = {}
        """Metric -> windows before it was first awaited."""
        self.last: dict[str, int] = {}
        """Metric -> last step for which this rank gave it, laps included."""
        self.laps: dict[str, int] = {}
        """Metric -> offset of its steps, because they began again."""

    def place(self, name: str, points: Iterable[Given]) -> Iterator[tuple[int, Point]]:
        """Yield ``points`` that have a value with their positions on a line that never goes back.

        Scripts that count the steps of each epoch from 0 begin again; a loss that comes late from a
        device is only a little behind.
        """
        begun, last = self.laps.get(name, 0), self.last.get(name, -1)
        for point in points:
            if point[1] is None:
                continue
            step = point[0] + begun
            if step <= last and begun < last and step - begun <= (last - begun) // 2:
                step += last + 1 - begun
                self.laps[name] = begun = last + 1
            if step > last:  # as nearly always
                self.last[name] = last = step
            yield step, point  # type: ignore[misc]  # its value is known


class _Pending:
    def __init__(self, since: float, *, again: bool) -> None:
        self.points: dict[int, Point] = {}
        self.since = since
        self.again = again
        """The step was reduced before: scripts that report without making steps stay at one."""


class _Series:
    """One metric: its steps that wait for ranks, and the offset of its steps in this attempt."""

    def __init__(self) -> None:
        self.pending: dict[int, _Pending] = {}
        self.done = -1
        """Last step of this attempt that was reduced, offset included."""
        self.most = 0
        self.complete_at = -math.inf
        self.blocking: tuple[int, int, float] | None = None
        """A rank that the oldest step waits for, that step, and since when: only a point of that rank, an older step or
        the time can complete it."""
        self.silent: set[int] = set()
        """Ranks that were awaited in vain and never gave it."""
        self.is_own = False
        """Whether the script counts the steps: epochs, say, or steps since before the checkpoint."""
        self.base: int | None = None
        """Offset in the last attempt that gave it; of the script's own steps also in this one."""
        self.end = self.length = -1
        """Last step that was reduced before this attempt, and how far an attempt got without its offset."""

    def behind(self, step: int, base: int) -> bool:
        """Return whether ``step``, the first of an attempt, is nearer to the beginning than to where the metric was."""
        return step <= (self.end - base) // 2

    def begin_again(self, base: int) -> None:
        """Keep how far this attempt came from ``base`` on."""
        if self.done >= 0:
            self.base, self.end = base, self.done
            self.length = max(self.end - base, self.length)
        self.done, self.most, self.complete_at = -1, 0, -math.inf


class PointReducer:
    """Collects points by name and step until every rank that gives the metric has given it.

    Ranks may thin their points differently when steps are fast. A step that only some gave is
    left out while complete ones keep coming, because the mean of a changing subset is noise.
    """

    def __init__(self, run: str, hosts: Iterable[str] = ()) -> None:
        self._run = run
        self._unheard = set(hosts)
        """Hosts that have not reported their ranks: they are awaited like a rank."""
        self._ranks: dict[int, _RankProgress] = {}
        self._series: defaultdict[str, _Series] = defaultdict(_Series)
        self._hook_base = 0
        """Offset of the hook's steps in this attempt: every process counts them from 0."""
        self._base = 0
        """Offset of a metric with steps of the script's own that no attempt before this has given."""
        self._unplaced: set[str] = set()
        """Metrics of earlier attempts for which nothing in this one has shown where they continue."""

    def has(self, name: str) -> bool:
        return name in self._series

    def heard_of(self, host: str, t: float) -> Iterator[Metric]:
        """Note that a host's ranks are known, or will never be, and yield steps that are now complete."""
        if host in self._unheard:
            self._unheard.discard(host)
            yield from self._ready_of_all(t)

    def begin_again(self, t: float, base: int) -> Iterator[Metric]:
        """Yield the remaining steps: every rank starts again, and the steps of windows have the offset ``base`` now."""
        for progress in self._ranks.values():
            progress.alive = False  # whether or not its host has said so yet
        yield from self.flush(t)
        for series in self._series.values():
            series.begin_again(self._base_of(series))
        self._unplaced = {name for name, series in self._series.items() if series.end >= 0}
        ends = (series.end for series in self._series.values() if not series.is_own)
        self._hook_base = max(base, 1 + max(ends, default=-1))
        # Each is awaited from now on: its host may be the last to report its start.
        self._ranks = {rank: _RankProgress() for rank in self._ranks}

    def rank_is(self, rank: int, t: float, *, alive: bool) -> Iterator[Metric]:
        """Note that a rank lives, or has ended behind its last window, and yield steps that are now complete."""
        progress = self._ranks.setdefault(rank, _RankProgress())
        if progress.alive == alive:
            return
        progress.alive = alive
        if not alive:
            for name in progress.last:
                self._series[name].most -= 1
            yield from self._ready_of_all(t)

    def add(
        self, rank: int, points: Mapping[str, Sequence[Given]], t: float, made: range
    ) -> list[Metric]:
        """Take a rank's points by metric, from its window at ``t`` in which it ``made`` steps; return complete ones."""
        self._keep(rank, points, t, made)
        return [
            metric
            for name, series in self._series.items()
            if series.pending and not self._still_blocked(series, rank, t)
            for metric in self._ready(name, series, t)
        ]

    def add_all(
        self, given: Iterable[tuple[int, Mapping[str, Sequence[Given]]]], t: float
    ) -> Iterator[Metric]:
        """Take points of several ranks, which may have ended, and yield steps that are complete then."""
        for rank, points in given:
            self._keep(rank, points, t, None)
        yield from self._ready_of_all(t)

    def _keep(
        self, rank: int, points: Mapping[str, Sequence[Given]], t: float, made: range | None
    ) -> None:
        progress = self._ranks.get(rank) or self._ranks.setdefault(rank, _RankProgress())
        progress.windows += bool(made)
        known = [
            (name, self._series[name], given)
            for name, given in points.items()
            if name in self._series or len(self._series) < MAX_NAMES
        ]
        for _, series, given in known:
            if given and not series.is_own:
                self._find_own(series, given[-1][0], made)
        if self._unplaced:
            self._continue(points)
        for name, series, given in known:
            steps, done, base = series.pending, series.done, self._base_of(series)
            for step, point in progress.place(name, given):
                step += base
                if step < done:
                    continue  # too late
                pending = steps.get(step)
                if pending is None:
                    pending = steps[step] = _Pending(t, again=step == done)
                    if series.blocking is not None and step < series.blocking[1]:
                        series.blocking = None
                pending.points[rank] = point

    def _still_blocked(self, series: _Series, rank: int, t: float) -> bool:
        """Whether a window of ``rank`` at ``t`` leaves the oldest step of a metric waiting."""
        blocking, _, since = series.blocking or (rank, 0, t)
        late = t - since > MAX_WAIT_SECONDS or len(series.pending) > MAX_PENDING_STEPS
        return blocking != rank and not late

    def _base_of(self, series: _Series) -> int:
        if not series.is_own:
            return self._hook_base
        return self._base if series.base is None else series.base

    def _find_own(self, series: _Series, last: int, made: range | None) -> None:
        """Find out by the ``last`` step of a window if it is the hook's: of the window, or a little behind it."""
        if made is None or not made.start // 2 <= last <= made.stop:
            if series.done >= 0 or series.pending:
                series.base = self._hook_base  # until the end of this attempt
            series.is_own = True

    def _continue(self, points: Mapping[str, Sequence[Given]]) -> None:
        """Set the offsets of an attempt for the script's own steps; its first points decide, for all ranks alike.

        As for one rank's steps in ``place``: far behind means from the beginning, and the lines go on; else the
        steps are repeated, and the lines go back to them. Metrics that count the same have one offset: one that is
        given every 100 steps goes on where the others do. A metric that never got half as far as another counts
        something else, and goes on behind itself.
        """
        own = {name: each for name, each in self._series.items() if each.is_own and each.end >= 0}
        self._unplaced -= points.keys() - own.keys()
        longest = max((each.length for each in own.values()), default=0)
        steps = {name for name, each in own.items() if 2 * each.length >= longest}
        firsts = [
            (points[name][0][0], name)
            for name in self._unplaced & own.keys() & points.keys()
            if points[name]
        ]
        for step, name in sorted(firsts, key=lambda first: (first[1] not in steps, first)):
            series = own[name]
            base = self._base_of(series)
            if name not in steps:
                series.base = series.end + 1 if series.behind(step, base) else base
                self._unplaced.discard(name)
            elif series.end >= base:  # else the attempt before this did not give it
                self._base = base
                if series.behind(step, base):
                    self._base = 1 + max(own[each].end for each in steps)
                    for each in self._unplaced & own.keys():
                        own[each].base = own[each].end + 1
                    for each in steps:
                        own[each].base = self._base
                self._unplaced -= own.keys()
                return

    def flush(self, t: float) -> Iterator[Metric]:
        """Yield the remaining steps, incomplete ones too."""
        for name, series in self._series.items():
            series.blocking = None
            for step in sorted(series.pending):
                entry = series.pending.pop(step)
                series.done = step
                if self._worth(series, entry, entry.since):
                    yield self._emit(name, step, entry, t)

    def _ready_of_all(self, t: float) -> Iterator[Metric]:
        for name, series in self._series.items():
            yield from self._ready(name, series, t)

    def _ready(self, name: str, series: _Series, t: float) -> Iterator[Metric]:
        steps = series.pending
        for step in sorted(steps):
            entry = steps[step]
            late = t - entry.since > MAX_WAIT_SECONDS or len(steps) > MAX_PENDING_STEPS
            if self._unheard and not late:
                return
            absent = (rank for rank in self._ranks if rank not in entry.points)
            awaited = [rank for rank in absent if self._may_give(rank, name, step, entry)]
            series.blocking = None
            if awaited:
                if not late:
                    series.blocking = awaited[-1], step, entry.since
                    return
                series.silent |= {rank for rank in awaited if name not in self._ranks[rank].last}
            del steps[step]
            series.done = step
            if self._worth(series, entry, t):
                if len(entry.points) >= series.most:
                    series.most, series.complete_at = len(entry.points), t
                yield self._emit(name, step, entry, t)

    def _may_give(self, rank: int, name: str, step: int, entry: _Pending) -> bool:
        progress = self._ranks.get(rank)
        if progress is None or not progress.alive or rank in entry.points:
            return False
        last = progress.last.get(name)
        if last is None:
            since = progress.awaited.setdefault(name, progress.windows)
            has_time = progress.windows < since + SILENT_WINDOWS
            return has_time and rank not in self._series[name].silent
        return last < step or (entry.again and last == step)

    def _worth(self, series: _Series, entry: _Pending, t: float) -> bool:
        """Return True if a step is worth a point: more than thinning's leftovers, or NaN."""
        count = len(entry.points)
        if _first_bad(entry.points.values()) is not None:
            return True
        if count >= series.most or count >= sum(each.alive for each in self._ranks.values()):
            return True
        return t - series.complete_at > MAX_WAIT_SECONDS / 2

    def _emit(self, name: str, step: int, entry: _Pending, t: float) -> Metric:
        points = entry.points.values()
        value, samples = reduce_points(points)
        finite = [*filter(math.isfinite, map(_value_of, points))] or [value]
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


class _Waiting:
    def __init__(self, since: float) -> None:
        self.since = since
        self.first: dict[int, tuple[Point, float]] = {}
        """Rank -> its first point that is no number, and the time of its window."""
        self.heard: dict[int, int] = {}
        """Rank -> the last step for which it has reported the metric since."""


class NotFiniteWatch:
    """Tells once of each metric at which step, on which ranks it first was no number.

    Windows come in any order, and a gradient carries a NaN to every rank within a step: so all ranks
    that live are waited for.
    """

    def __init__(self, ranks: RanksSeen) -> None:
        self._ranks = ranks
        self._waiting: dict[str, _Waiting] = {}
        self._told: set[str] = set()

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def add(self, rank: int, points: dict[str, list[Point]], t: float) -> Iterable[RunFinding]:
        """Take a rank's window of time ``t``, points in rising steps by metric, and return complete ones."""
        for name, given in points.items():
            waiting, bad = self._waiting.get(name), _first_bad(given)
            if waiting is None:
                full = len(self._told) + len(self._waiting) >= MAX_NAMES
                if bad is None or full or name in self._told:
                    continue
                waiting = self._waiting[name] = _Waiting(t)
            if bad is not None:
                waiting.first.setdefault(rank, (bad, t))
            if given:
                waiting.heard[rank] = given[-1].step
        return self.due(t) if self._waiting else ()

    def due(self, t: float) -> Iterator[RunFinding]:
        """Yield complete findings; at the end of an attempt, when ``t`` is infinite, all."""
        for name, waiting in list(self._waiting.items()):
            step = min(point.step for point, _ in waiting.first.values())
            late = t - waiting.since > PATIENCE_SECONDS
            if late or all(waiting.heard.get(rank, -1) >= step for rank in self._ranks.living):
                yield self._tell(name, step)

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


def _first_bad(given: Iterable[Point]) -> Point | None:
    if math.isfinite(sum(map(_value_of, given))):
        return None  # as nearly always; the sum of finite ones may be infinite
    return next((point for point in given if not math.isfinite(point.value)), None)
