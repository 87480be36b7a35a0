"""Finds ranks, or a host's, that the others have long been waiting for; and the cost."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, isnan, nan
from operator import attrgetter
from statistics import median, mode
from typing import Any

import msgspec
from msgspec import UNSET

from distconsole.model.names import join_some
from distconsole.model.run_events import RunFinding, Window
from distconsole.model.time_text import ms_text
from distconsole.runs import pace
from distconsole.runs.detectors import slowness
from distconsole.runs.detectors.conclusions import STRAGGLER
from distconsole.runs.detectors.ranks import MAX_RANKS_NAMED, RanksSeen, ranks_text
from distconsole.runs.detectors.slow_causes import SlowCause

FIGURES = ("step_ms_mean", *(f"{part}_ms" for part in slowness.PARTS[1:]), "cpu_wait", "disk_wait")
_figures_of = attrgetter("t", "step", *FIGURES)
_UNSEEN = (nan,) * len(slowness.PARTS)
_STEP, _WAITED = 2, 2 + len(FIGURES)
"""Where a record has its step time, and the first of its waits; those of the other parts follow."""
_SIZE = _WAITED + len(slowness.PARTS)

Figures = Sequence[float | None]
Waited = tuple[float, float, float, float, float] | None
MakesWindow = Window | Callable[[], Window]
"""The window, or what makes it where it is asked for."""
Record = tuple[float, ...]
"""Of a window its time, its step, ``FIGURES`` and the five waits; NaN where unknown."""


class Known:
    """A rank's last windows, ``pace.KNOWN_WINDOWS`` at most: the newest whole, of all the compared figures.

    As objects they took 1 kB each, most of the memory of a run of thousands of ranks.
    """

    __slots__ = ("figures", "host", "newest")

    def __init__(self) -> None:
        self.figures = array("d")

    def add(self, host: str, figures: Figures, waited: Waited, newest: MakesWindow) -> None:
        self.figures.extend([nan if each is None else each for each in figures])
        self.figures.extend(waited or _UNSEEN)
        del self.figures[: -pace.KNOWN_WINDOWS * _SIZE]
        self.host, self.newest = host, newest

    @property
    def t(self) -> float:
        return self.figures[-_SIZE]

    @property
    def step(self) -> int:
        return int(self.figures[1 - _SIZE])

    def last(self, count: int = pace.KNOWN_WINDOWS) -> list[Record]:
        """Return the last ``count`` windows, the newest last."""
        kept = self.figures
        begin = max(0, len(kept) - count * _SIZE)
        return [tuple(kept[at : at + _SIZE]) for at in range(begin, len(kept), _SIZE)]

    @property
    def usual_window(self) -> Window:
        """The newest window with the median of each figure."""
        recent = [*map(_median, zip(*self.last(pace.RECENT_WINDOWS), strict=True))][_STEP:]
        known = [None if isnan(each) else each for each in recent]
        times, waited = dict(zip(FIGURES, known, strict=False)), known[len(FIGURES) :]
        said = None if None in waited else tuple(waited)
        newest = self.newest if isinstance(self.newest, Window) else self.newest()
        return msgspec.structs.replace(newest, waited_ms=said, **times)


def _median(recent: Sequence[float]) -> float:
    """Return the median of a figure in a rank's last windows: one second may be noise; NaN if one of them is."""
    return nan if isnan(sum(recent)) else median(recent)


def _own_ms(record: Record) -> float:
    waited, step = record[_WAITED], record[_STEP]
    return step if isnan(waited) else step - waited


class StragglerWatch:
    """Compares the ranks once a second; reports those that are slow together once until they recover."""

    def __init__(self) -> None:
        self.slow: dict[int, slowness.Straggler] = {}
        """The ranks that are slow, with the newest figures."""
        self.told: list[slowness.Straggler] = []
        """Reported ranks, the newest last, at most ``MAX_TOLD``: the cost is the mean since the report."""
        self._told_seconds = 0
        self._recent: dict[int, Known] = {}
        self._windows: dict[int, int] = {}
        self._streak: dict[int, int] = {}
        self._began: dict[int, dict[int, Record]] = {}
        """Rank -> state of each rank when its streak began."""
        self._by_rank: tuple[dict[int, Any], ...] = (
            *(self.slow, self._recent, self._windows, self._streak, self._began),
        )
        self._together: deque[frozenset[int]] = deque(maxlen=pace.PERSISTENT_SECONDS)
        """Ranks that stood out together in each of the last seconds."""
        self._second = 0

    def rank_ended(self, rank: int) -> None:
        for known in self._by_rank:
            known.pop(rank, None)

    def begin_again(self) -> None:
        """Forget all but the reported ranks: every rank starts again."""
        for known in self._by_rank:
            known.clear()
        self._together.clear()
        self._told_seconds = 0

    def newest(self) -> dict[int, Window]:
        return {rank: known.usual_window for rank, known in self._recent.items()}

    def add(self, window: Window) -> list[slowness.Straggler]:
        """Take one rank's window; return the worst of the ranks that newly count as slow."""
        if window.step_ms_mean is None or not window.steps:
            return []
        figures = _figures_of(window)
        return self.take(window.rank, window.host, figures, window.waited_ms, window)

    def take(
        self, rank: int, host: str, figures: Figures, waited: Waited, window: MakesWindow
    ) -> list[slowness.Straggler]:
        """Take a window with steps, as ``add`` does: its time, step and ``FIGURES``, its waits, and the whole."""
        known = self._recent.get(rank)
        if known is None:
            self._windows[rank] = self._windows.get(rank, 0) + 1
            if self._windows[rank] > pace.WARM_UP_WINDOWS:
                known = self._recent[rank] = Known()
        if known is not None:
            known.add(host, figures, waited, window)
        t = figures[0] or 0.0
        if int(t) <= self._second:
            return []
        self._second = int(t)
        fresh = {
            r: recent
            for r, recent in self._recent.items()
            if t - recent.figures[-_SIZE]
            <= max(
                pace.COMPARED_SECONDS, pace.COMPARED_STEPS * recent.figures[_STEP - _SIZE] / 1000
            )
        }
        return self._judge(fresh) if len(fresh) >= 2 else []

    def _judge(self, fresh: dict[int, Known]) -> list[slowness.Straggler]:
        now_slow: dict[int, slowness.Straggler] = {}
        if self._began or slowness.standing_out(_times_of(fresh, usual=False)):
            # Seldom: the medians of many windows take time.
            now_slow = slowness.standing_out(_times_of(fresh, usual=True))
        for rank in [rank for rank in self._streak if rank not in now_slow]:
            for known in (self._streak, self._began, self.slow):
                known.pop(rank, None)
        for rank in now_slow:
            self._streak[rank] = self._streak.get(rank, 0) + 1
            if rank not in self._began:
                self._began[rank] = {r: _half_ago(known) for r, known in fresh.items()}
        # Ranks that are slow together are named together.
        self._together.append(frozenset(now_slow))
        # Other ranks wait for them, or they fall behind in a job without waits.
        new = [
            rank
            for rank, straggler in now_slow.items()
            if rank not in self.slow
            and (straggler.cost_ms > 0 or _lags(self._began[rank], fresh, rank))
        ]
        # Checked last, for these alone: it compares many windows of all ranks.
        if new and not self._lasts(now_slow, fresh):
            new = []
        for rank, straggler in now_slow.items():
            if rank in self.slow or rank in new:
                self.slow[rank] = straggler._replace(since_step=int(self._began[rank][rank][1]))
        worst = max((self.slow[rank] for rank in new), key=lambda one: one.excess_ms, default=None)
        self._tell(worst, fresh.values())
        return [worst] if worst is not None else []

    def _lasts(self, now_slow: Iterable[int], fresh: Iterable[int]) -> bool:
        others = [self._recent[rank] for rank in fresh if rank not in self._together[-1]]
        excess = {rank: _excess_ms(self._recent[rank], others) for rank in now_slow}
        for_seconds = all(self._streak[rank] >= pace.PERSISTENT_SECONDS for rank in now_slow)
        if for_seconds and mode(self._together) == self._together[-1]:
            # Where waits were not seen own times are not known.
            unseen = {r for r in now_slow if isnan(self._recent[r].figures[_WAITED - _SIZE])}
            if all(rank in unseen or _is_mostly(each) for rank, each in excess.items()):
                return True
        return all(_is_clear(each, others) for each in excess.values())

    def _tell(self, new: slowness.Straggler | None, fresh: Iterable[Known]) -> None:
        if new is not None:
            self.told = [*self.told[-MAX_TOLD + 1 :], new]
            self._told_seconds = 1
        elif self.told and self.told[-1].last_step < 0:
            last = self.told[-1]
            now, count = self.slow.get(last.rank), self._told_seconds
            if now is None or now.ranks != last.ranks:
                step = max(known.step for known in fresh)
                self.told[-1] = last._replace(last_step=step)
                return
            means = {
                name: (count * getattr(last, name) + getattr(now, name)) / (count + 1)
                for name in ("cost_ms", "step_ms", "own_ms", "median_ms")
            }
            self.told[-1] = last._replace(**means)
            self._told_seconds += 1


def _times_of(fresh: Mapping[int, Known], *, usual: bool) -> slowness.Times:
    """Return the ranks' times in their newest windows, or the usual ones of their last windows."""
    ranks = fresh.values()
    count = pace.RECENT_WINDOWS if usual else 1
    size = count * _SIZE
    # One block of all ranks, so that a column is one slice.
    block = array("d", b"".join([known.figures[-size:] for known in ranks]))

    def column(part: str, waits: bool) -> Sequence[float]:
        figure = slowness.PARTS.index(part) + (_WAITED if waits else _STEP)
        if len(block) < size * len(ranks):
            return [_median(known.figures[-size:][figure::_SIZE]) for known in ranks]
        windows = [block[at + figure :: size] for at in range(0, size, _SIZE)]
        if not usual or all(map(isnan, windows[-1])):
            return windows[-1]
        if isnan(sum(map(sum, windows))):
            return [*map(_median, zip(*windows, strict=True))]
        return [each[count // 2] for each in map(sorted, zip(*windows, strict=True))]

    def noise_ms() -> float:
        if not usual:
            return 0.0
        # Most ranks' own times differ by this from second to second, the farthest ones left out.
        ordered = (sorted(map(_own_ms, known.last(pace.RECENT_WINDOWS))) for known in ranks)
        spreads = sorted(each[-2] - each[1] if len(each) > 3 else inf for each in ordered)
        return spreads[3 * len(spreads) // 4]

    return slowness.Times({rank: known.host for rank, known in fresh.items()}, column, noise_ms)


def _is_clear(excess: Sequence[float], others: Sequence[Known]) -> bool:
    """Whether ``_excess_ms`` of a rank over the ``others`` is clearly more than noise in each of its last windows.

    Noise is its excess before, and early in a run the differences among the others; the farthest
    is left out. A pause or a burst of another process fills fewer windows.
    """
    now, noise = list(excess[: pace.RECENT_WINDOWS]), list(excess[pace.RECENT_WINDOWS :])
    if len(noise) < pace.LEAST_NOISE:
        owns = [list(map(_own_ms, other.last())) for other in others]
        noise += [each - median(own) for own in owns for each in own]
    if len(now) < pace.RECENT_WINDOWS or len(noise) < pace.LEAST_NOISE:
        return False
    noise.sort()
    return min(now) - noise[-2] >= pace.CLEAR_SHARE * (median(now) - median(noise))


def _is_mostly(excess: Sequence[float]) -> bool:
    """Return True if a rank was slower in most of its windows, and not by occasional pauses."""
    half = median(excess[: pace.RECENT_WINDOWS]) / 2
    slow = [each >= half for each in excess]
    counting = slow[: pace.PERSISTENT_SECONDS + pace.RECENT_WINDOWS // 2]
    mostly = sum(counting) >= pace.MOSTLY_SHARE * len(counting)
    return mostly or sum(slow) >= pace.OFTEN_SHARE * pace.KNOWN_WINDOWS


def _excess_ms(known: Known, others: Sequence[Known]) -> list[float]:
    """Return by how much a rank's own time exceeds that of the ``others`` in each window, the newest first."""
    mine = known.last()
    some = [other.last() for other in others[:: 1 + len(others) // MAX_OTHERS]]
    length = min(map(len, [mine, *some]))
    return [  # hosts' windows do not arrive at the same time
        _own_ms(each)
        - median(_own_ms(min(one, key=lambda of: abs(of[0] - each[0]))) for one in some)
        for each in mine[: -length - 1 : -1]
    ]


def _half_ago(known: Known) -> Record:
    """Return the first of the windows that now are most of the last ones."""
    recent = known.last(pace.RECENT_WINDOWS)
    return recent[-(len(recent) // 2 + 1)]


MAX_TOLD = 100
MAX_OTHERS = 64  # their median is close to that of all other ranks


def _lags(began: Mapping[int, Record], fresh: Mapping[int, Known], rank: int) -> bool:
    """Whether ``rank`` has made fewer steps than the others since ``began``.

    Ranks that wait for each other make equally many, however the windows cut their steps up. The
    newest windows differ in time if a host's journal comes late: steps that a rank can
    have made between two such moments do not count.
    """
    (first_t, first_step, *_), last = began[rank], fresh[rank]
    if first_step < 0:
        return False  # the step is unknown
    others = [(began[r], fresh[r]) for r in fresh if r != rank and r in began]
    if not others:
        return False
    made, own = [there.step - here[1] for here, there in others], last.step - first_step
    if median(made) - own < pace.BEHIND_STEPS:
        return False  # as nearly always
    behind = median(
        steps
        - (abs(here[0] - first_t) + abs(there.t - last.t))
        * 1000
        / max(there.figures[_STEP - _SIZE], 1e-3)
        for steps, (here, there) in zip(made, others, strict=True)
    )
    return behind - own >= max(pace.BEHIND_STEPS, pace.BEHIND_SHARE * max(made))


_LOOK = (
    "look at what the script does there on this rank alone, and at the host's processors and GPUs "
    "(distconsole top)"
)
_HINTS = {
    slowness.DATA: "it waits longer for its batches: look at the DataLoader's num_workers, and at the "
    "host's disk and processors (distconsole top)",
    slowness.FORWARD: f"its forward part takes longer: {_LOOK}",
    slowness.BACKWARD: f"its backward part takes longer, without its waits: {_LOOK}",
    slowness.OPTIMIZER: f"its optimizer takes longer: {_LOOK}",
    slowness.STEP: _LOOK,
    slowness.REST: f"{_LOOK}: logging, writing files, a validation",
}
"""Says which part was measured; why it takes longer was not."""
_HOST_HINT = (
    "all ranks of the host are slow and those of the others are not: look at what they share, its "
    "disk, memory, processors and network (distconsole top; distconsole check)"
)


def straggler_finding(
    ranks: RanksSeen, slow: slowness.Straggler, t: float, cause: SlowCause | None = None
) -> RunFinding:
    """Return the finding on a slow rank: the part of the step, the cost, and the cause if it is known."""
    where = {
        slowness.STEP: "its steps",
        slowness.REST: "its steps, outside data, forward, backward and optimizer",
    }.get(slow.part, f"the {slow.part} part of its steps")
    since = f" since about step {slow.since_step:,}" if slow.since_step >= 0 else ""
    if not slow.is_one:
        where = where.replace("its steps", "their steps")
    cost = f"; costs {cost_text(slow)} of each step" if slow.cost_ms else ""
    found = ranks.finding(
        t,
        STRAGGLER,
        f"{who_text(slow, ranks.hosts)} {'is' if slow.is_one else 'are'} slow{since} in {where}: "
        f"{ms_text(slow.excess_ms)} more than the others, of {ms_text(slow.step_ms)} a step{cost}"
        + (f": {cause.text}" if cause else ""),
        slow.together,
        seen=f"{ms_text(slow.own_ms)} there; median of the others {ms_text(slow.median_ms)}",
        expected="what each rank takes for itself in a step is alike",
        hint=cause.hint if cause else _HOST_HINT if slow.hosts else _HINTS[slow.part],
    )
    costs = round(100 * slow.cost_share, 2) if slow.cost_ms else UNSET
    return msgspec.structs.replace(found, costs=costs, kind=cause.kind if cause else UNSET)


def who_text(slow: slowness.Straggler, hosts: Mapping[int, str]) -> str:
    """Return the name of a slow rank and its host, of whole hosts and their ranks, or of several ranks."""
    if slow.hosts:
        return f"{join_some(slow.hosts, MAX_RANKS_NAMED)} ({ranks_text(slow.together)})"
    if len(slow.together) > 1:
        return ranks_text(slow.together)
    return f"rank {slow.rank} on {hosts.get(slow.rank, '')}"


def cost_text(slow: slowness.Straggler) -> str:
    """Return the share of a step that would be saved without it: ``9.3 %``."""
    share = 100 * slow.cost_share
    return f"{share:.1f} %" if share < 10 else f"{share:.0f} %"


def past_text(slow: slowness.Straggler, hosts: Mapping[int, str]) -> str:
    """Return ``rank 3 on node2 cost 9.3 % of each step on average since step 12,040``, or from one step to another."""
    cost = f"cost {cost_text(slow)} of each step on average" if slow.cost_ms else "was slow"
    when = f" since step {slow.since_step:,}" if slow.since_step >= 0 else ""
    if when and slow.last_step >= 0:
        when = f" from step {slow.since_step:,} to {slow.last_step:,}"
    return f"{who_text(slow, hosts)} {cost}{when}"
