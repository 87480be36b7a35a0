"""The rows of the table of ranks, and their order."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import partial
from math import inf, isfinite
from statistics import median
from typing import NamedTuple, overload

from msgspec import UNSET

from distconsole.model.run_events import RankState
from distconsole.model.time_text import is_time
from distconsole.runs.detectors.slowness import STEP
from distconsole.runs.detectors.stragglers import cost_text
from distconsole.runs.diagnosis.stacks import line_text, own_place
from distconsole.runs.diagnosis.waiting import (
    first_pending,
    is_pending,
    stack_waits_in,
    without_p2p,
)
from distconsole.runs.health import stall_of
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Present, Sight, own_ms_of, present
from distconsole.runs.rank_history import BROKEN, UNKNOWN, RankHistory
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline

TROUBLES = {RankState.FAILED: 1, RankState.KILLED: 2, RankState.LOST: 2, RankState.STALLED: 4}
"""States that are troubles by themselves, and their places in the reading order."""
BLAMED, LOST, HEALTHY = 3, 5, 7
"""Places in the reading order of ranks whose own state is no trouble."""
WELL = (HEALTHY, 0)

SORT_KEYS: dict[str, Callable[[RankView], float]] = {
    "p95": lambda view: -(view.step_ms_p95 or 0.0),
    "samples/s": lambda view: inf if view.samples_s is None else view.samples_s,
    "loss": lambda view: _loss_place(view.metrics.get("loss")),
    "ms": lambda view: -(view.step_ms_mean or 0.0),
    "data": lambda view: -(view.data_ms or 0.0) / (view.step_ms_mean or inf),
    "step": lambda view: -1 if view.step is None else view.step,
}
"""Sort keys of ranks, after their troubles; equal ones, and all in any other order, go by number."""


def _loss_place(loss: float | None) -> float:
    """Return a rank's place by this loss: NaN and infinities, then the highest first; unknown last."""
    return inf if loss is None else -loss if isfinite(loss) else -inf


class RankRow(NamedTuple):
    """One rank in the table.

    ``blamed``: the others hang, and wait for it; ``where`` returns the call that a stalled rank waits in or runs, by the
    newest roll call. ``slow`` is the slow part of its steps; ``lost`` is the state of a host without news,
    ``lost`` or, with a connection, ``no word``. ``elapsed`` counts seconds since its process was started, None if it was
    not; ``longest`` is the most that any rank has taken to start. ``wait_ms`` is its wait for others in each step;
    ``own_ms`` is a step without that, ``usual_own_ms`` the median of it, both None if such waits are not known;
    ``median_ms`` and ``longest_ms`` are step times of all ranks; ``excess_ms`` is its delay, ``slowest``
    the only rank that is slow; ``costs`` its price, empty if no rank waits for it; ``recent`` returns a rank's step times
    of the last minute; ``ended_seconds`` is its end, counted from the first end of a rank.
    """

    view: RankView
    first: bool = False
    slow: str = ""
    sight: Sight = Sight.MEASURED
    lost: str = ""
    still_seconds: float | None = None
    gpu_known: bool = True
    elapsed: float | None = None
    longest: float = 0.0
    lost_seconds: float | None = None
    wait_ms: float | None = None
    median_ms: float = 0.0
    longest_ms: float = 0.0
    excess_ms: float = 0.0
    slowest: int | None = None
    recent: Callable[[int], Sequence[float | None]] | None = None
    ended_seconds: float = 0.0
    costs: str = ""
    usual_own_ms: float | None = None
    blamed: bool = False
    where: Callable[[RankView], str] | None = None

    @property
    def own_ms(self) -> float | None:
        step = self.view.step_ms_mean
        if step is None or self.wait_ms is None or self.usual_own_ms is None:
            return None
        return step - self.wait_ms

    @property
    def trouble(self) -> int:
        """Its place in the reading order: 0 for the first failure, up to ``HEALTHY``."""
        if self.first:
            return 0
        if self.blamed:
            return BLAMED
        if self.view.state in TROUBLES:
            return TROUBLES[self.view.state]
        if self.lost and self.view.alive:
            return LOST
        if self.still_seconds is not None:
            return TROUBLES[RankState.STALLED]
        return 6 if self.slow else HEALTHY


class RankRows(Sequence[RankRow]):
    """The ranks of a run at ``now`` (UNIX seconds) in ``order``, one of ``keys.SORTS``.

    A row is made on access: of thousands of ranks a screen shows some fifty.

    Attributes:
        calm: All ranks live, and none is on a host that is lost or silent.
        hung: Some rank stands still.
        priced: A slow rank has a known cost.
        own_known: The ranks' waits for each other are known.
    """

    def __init__(
        self,
        timeline: RunTimeline,
        now: float,
        figures: Present | None = None,
        history: RankHistory | None = None,
        order: str = "rank",
    ) -> None:
        self._timeline, self._now = timeline, now
        self._figures = figures = figures or present(timeline, now)
        self._first = first_failure_rank(timeline)
        stall = stall_of(timeline, figures)
        one = () if stall is None or stall.rank is UNSET else (stall.rank,)
        self._blamed = one if stall is None or stall.ranks is UNSET else stall.ranks
        self._slow = {each.rank: each for each in figures.slow}
        views = timeline.ranks.items() if starting(timeline) else ()
        self._starts = {
            n: view.phases.get("first_step", max(0.0, now - view.started_at))
            for n, view in views
            if view.started_at
        }
        self._longest = max(self._starts.values(), default=0.0)
        self._usual, self._highest = 0.0, max(figures.times, default=0.0)
        if figures.times:
            self._usual = median(figures.times)
        self._alone = next(iter(self._slow)) if len(self._slow) == 1 else None
        until = timeline.until(now)
        self._recent = None if history is None else partial(recent_steps, history, until=until)
        lost = any(_lost(timeline, view)[0] for view in figures.unseen)
        self.calm = not figures.gone and not lost
        self.hung = bool(figures.standing)
        self.own_known = figures.waits.usual_own_ms is not None
        self.priced = any(each.cost_ms for each in figures.slow)
        self._numbers = array("q", self._in_order(order))

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> RankRow: ...

    @overload
    def __getitem__(self, index: slice) -> list[RankRow]: ...

    def __getitem__(self, index: int | slice) -> RankRow | list[RankRow]:
        if isinstance(index, slice):
            return [self._row(number) for number in self._numbers[index]]
        return self._row(self._numbers[index])

    def _in_order(self, order: str) -> list[int]:
        ranks = self._timeline.ranks
        numbers = sorted(ranks)
        if order == "worst":
            odd = ranks.keys() & {*self._figures.others, *self._slow, self._first}
            early = {number: self._early(number) for number in odd}  # nearly all are well
            if early:
                numbers.sort(key=lambda number: early.get(number, WELL))
        elif order == "costs":
            costs = {number: slow.cost_ms for number, slow in self._slow.items()}
            numbers.sort(key=lambda number: -costs.get(number, 0.0))
        elif order == "own":
            waits, sight = self._figures.waits, self._figures.sight
            owns = {each: own_ms_of(ranks[each], waits, sight(each)) or 0.0 for each in numbers}
            numbers.sort(key=lambda number: -owns[number])
        elif (key := SORT_KEYS.get(order)) is not None:
            numbers.sort(key=lambda number: key(ranks[number]))
        return numbers

    def _where(self, view: RankView) -> str:
        """Return ``all_reduce #156`` or ``train.py:29`` for a rank in a roll call since its last step."""
        called = self._timeline.calls.get(view.rank)
        if called is None or called.t < (view.stepped_at or 0.0):
            return ""
        call = called.call
        pending = (
            each for each in map(without_p2p, call.collectives) if each and is_pending(each)
        )
        waits_in, place = next(pending, None), own_place(call.frames)
        parts = []
        if waits_in is not None and view.rank not in self._blamed:
            parts.append(f"{waits_in.op} #{first_pending(waits_in):,}")
        elif op := stack_waits_in(call):
            parts.append(op)
        return " ".join([*parts, *([line_text(place)] if place is not None else ())])

    def _early(self, number: int) -> tuple[int, int]:
        """Return a rank's place in the order of reading: troubles first, then ranks behind in a start."""
        row = self._row(number)
        return row.trouble, 0 if row.elapsed is None else len(row.view.phases)

    def _row(self, number: int) -> RankRow:
        view, sight = self._timeline.ranks[number], self._figures.sight(number)
        over, waits = self._timeline.end is not None, self._figures.waits
        lost, lost_at = _lost(self._timeline, view) if sight is Sight.UNSEEN else ("", None)
        slow = self._slow.get(number)
        return RankRow(
            view,
            number == self._first,
            "" if slow is None else slow.part,
            sight,
            lost,
            self._figures.standing.get(view),
            sight in (Sight.MEASURED, Sight.IDLE)
            and is_fresh(view.sample.t if view.sample else None, self._now),
            self._starts.get(number),
            self._longest,
            None if lost_at is None else self._now - lost_at,
            waits.of(view) if sight is Sight.MEASURED or over else None,
            self._usual,
            self._highest,
            0.0 if slow is None else slow.excess_ms,
            self._alone,
            self._recent,
            costs="" if slow is None or not slow.cost_ms else cost_text(slow),
            usual_own_ms=waits.usual_own_ms,
            blamed=number in self._blamed and view in self._figures.standing,
            where=self._where,
        )


def recent_steps(history: RankHistory, rank: int, *, until: float) -> Sequence[float | None]:
    """Return step times of ``rank`` in the minute before ``until`` (UNIX seconds), a second each; None if unknown."""
    track = history.recent
    if history.started is None or not is_time(until - history.started):
        return ()
    last = int((until - history.started) / track.seconds) - track.first
    if not 0 <= last < track.columns + 60:
        return ()
    begin = max(0, last - 59)
    row = track.row(STEP, rank, begin)[: last - begin + 1]
    return [None if value in (UNKNOWN, BROKEN) else value for value in row] + [None] * (
        last - begin + 1 - len(row)
    )


def _lost(timeline: RunTimeline, view: RankView) -> tuple[str, float | None]:
    """Return the state of the host of a rank without news, and since when."""
    link, node = timeline.links.get(view.host), timeline.nodes.get(view.host)
    if link is not None and not link.connected:
        return "lost", link.t
    # A host that never reports may be well: it gets no words.
    return ("no word", node.t) if node is not None else ("", None)


def starting(timeline: RunTimeline) -> bool:
    """True while ranks are before their first step, and none of this attempt has done one."""
    early = timeline.end is None and not timeline.is_found
    return early and all(v.step is None for v in timeline.ranks.values())


def first_failure_rank(timeline: RunTimeline) -> int | None:
    found = (f for f in timeline.findings if f.check == "run.first_failure")
    rank = getattr(next(found, None), "rank", None)
    return rank if isinstance(rank, int) else None
