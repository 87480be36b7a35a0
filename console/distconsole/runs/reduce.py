"""From the nodes' journal entries to the events of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import assert_never, cast

from msgspec import UNSET, structs

from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import (
    EndState,
    PhaseReached,
    RankCalled,
    RankChanged,
    RankState,
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
)
from distconsole.model.run_summary import FirstFailure
from distconsole.rpc import frames
from distconsole.rpc.roll_calls import read_call
from distconsole.runs.detectors.all_ranks import AllRanksWatch, Earlier
from distconsole.runs.detectors.conclusions import (
    CONNECTION_LOST,
    NODE_LOST,
    RunOutcome,
    ScriptEndWatch,
    blame,
    first_failure_finding,
    note_finding,
    restart_finding,
)
from distconsole.runs.detectors.ranks import MAX_RANKS, PlanBounds, RanksSeen
from distconsole.runs.detectors.slow_causes import Load
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stalls import StallWatch
from distconsole.runs.detectors.stragglers import FIGURES, StragglerWatch, straggler_finding
from distconsole.runs.detectors.verify import SyncWatch
from distconsole.runs.detectors.worlds import SplitWatch, WorldWatch
from distconsole.runs.logs.printed import PrintedLosses
from distconsole.runs.points import NotFiniteWatch, Point, PointReducer
from distconsole.runs.rank_view import LIVING, RankView
from distconsole.runs.samples import load_events, waited_of, window_event
from distconsole.runs.timeline import RunTimeline

NUMBER_SECONDS = 5.0
"""Longest wait of a blame for the journal of the rank's host, which may come after the verdict."""
LATE = (frames.LogEntry, frames.NoteEntry, frames.WindowEntry, frames.EndEntry)
"""Kinds of entries that are taken of a lost host after the run's end, which did not wait for it."""

_figures_of = attrgetter(*FIGURES[1:])


class RunReducer:
    """The state that turns entries into events; feeding it the same entries gives the same events.

    Args:
        hosts: The hosts whose ``end`` makes the run's end, in the order of nodes.
        ranks: Their greatest number: reports of further ones are counted and left out.
        starts: The launcher by which the script starts the ranks, if it does.
    """

    def __init__(
        self,
        run: str,
        hosts: tuple[str, ...],
        ranks: int = MAX_RANKS,
        earlier: Earlier | None = None,
        starts: str = "",
    ) -> None:
        self.run = run
        self._ranks = RanksSeen(run)
        self._bounds = PlanBounds(self._ranks, ranks)
        self.ended: RunEnded | None = None
        self._hosts = frozenset(hosts)
        self._coordinator = hosts[0] if hosts else ""
        self._waiting = set(hosts)
        self._points = PointReducer(run, hosts)
        self.stragglers = StragglerWatch()
        self._load = Load(self._ranks)
        self._all_ranks = AllRanksWatch(self._ranks, self._load, earlier)
        self._sync = SyncWatch(self._ranks, hosts)
        self._splits = SplitWatch(self._ranks)
        self._stalls = StallWatch(self._ranks)
        self._worlds = WorldWatch(self._ranks)
        self._script = ScriptEndWatch(self._ranks, starts)
        self._lines = PrintedLosses(run, self._points)
        self._lost: set[str] = set()
        self._passed_by: Counter[str] = Counter()
        """Lost host -> steps that its ranks made since."""
        self._not_finite = NotFiniteWatch(self._ranks)
        self._exited: dict[int, frames.StateEntry] = {}
        """Rank -> how it exited, by its report: by itself, or on request."""
        self._outcome = RunOutcome(self._coordinator)
        self._numbered_ranks: set[int] = set()
        """Ranks whose number is not only the plan's."""
        self._plans_ranks: dict[tuple[str, int | None], int] = {}
        """Host and process -> its number in the plan."""
        self._numbers: dict[tuple[str, int], int] = {}
        """Host and number in the plan -> the number that its process group gave; the plan's of a rank that ended without."""
        self._unblamed: FirstFailure | None = None
        self._judged_at = 0.0
        self._restart, self._last_step = 0, -1
        self._restarts: dict[str, int] = {}
        """Host -> the attempt that its journal has come to."""
        self._bases = {0: 0}
        """Attempt -> offset of its steps, which each process counts from 0, in windows."""
        self._started: float | None = None
        self._summed: dict[int, tuple[str, RankView, int]] = {}
        """Rank -> its host, its view and the offset of its steps, while only windows are summed up."""

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(self._waiting)

    @property
    def judged(self) -> bool:
        return self._outcome.judged

    def feed(self, host: str, entry: frames.JournalEntry, t: float) -> Iterator[RunEvents]:
        """Return the events of the next ``entry`` of the journal of ``host``; ``t`` in UNIX seconds on the console's clock."""
        self._summed.clear()
        if self.ended is not None and not (host in self._lost and isinstance(entry, LATE)):
            return iter(())
        self._started = t if self._started is None else min(self._started, t)
        rank: int | None = getattr(entry, "rank", None)
        if rank is not None and rank >= self._bounds.ranks:
            return self._bounds.leave_out(host, f"rank {rank:,}", t)
        if isinstance(entry, frames.WindowEntry):  # most entries are
            return self._window(host, entry, t)
        return self._other(host, entry, t)

    def _other(self, host: str, entry: frames.JournalEntry, t: float) -> Iterator[RunEvents]:  # noqa: C901
        match entry:
            case frames.StateEntry():
                yield from self._state(host, entry, t)
            case frames.PhaseEntry(rank=rank, phase=phase, seconds=seconds):
                self._script.saw_rank()
                if self._is_current(host):
                    self._worlds.add(entry, t)
                    yield from self._all_ranks.started(entry, t)
                yield PhaseReached(
                    t=t, run=self.run, rank=rank, host=host, phase=phase, seconds=seconds
                )
            case frames.WindowEntry():
                yield from self._window(host, entry, t)
            case frames.CheckEntry():
                if self._is_current(host):
                    yield from self._sync.add(entry, t)
            case frames.SampleEntry():
                loads = load_events(self.run, host, entry.node, entry.gpus, t)
                yield from self._load.taken(self._bounds.within(host, loads, t))
                yield from chain(self._stalls.due(t), self._worlds.due(t), self._not_finite.due(t))
                yield from self._blame_numbered(t)
            case frames.LogEntry():
                yield from self._lines.feed(host, entry, t)
            case frames.FailureEntry():
                self._outcome.failed(host, entry, t)
            case frames.NoteEntry():
                yield from self._note(host, entry, t)
            case frames.VerdictEntry():
                if (first := self._outcome.take(host, entry)) is not None:
                    self._unblamed, self._judged_at = first, t
                yield from self._blame_numbered(t)
            case frames.RestartEntry():
                if (first := blame(entry.first_failure)) is not None:
                    yield restart_finding(self._ranks, first, self._left(), entry, t)
            case frames.AttemptEntry():
                yield from self._begin_attempt(host, entry, t)
            case frames.RollCallEntry():
                yield from self._called(host, entry, t)
            case frames.EndEntry():
                yield from self._node_ended(host, entry, t)
            case _:
                assert_never(entry)

    def lost_for_good(self, t: float) -> Iterator[RunEvents]:
        """Yield the end as far as it is known at ``t`` (UNIX seconds), when the hosts still waited for will not answer."""
        if self.ended is None:
            self._waiting.clear()
            yield from self._finish(t)

    def conclude(self, end: RunEnded) -> Iterator[RunEvents]:
        """Yield the rest of a run whose last host never came back, and the stored ``end``."""
        yield from (each for each in self.lost_for_good(end.t) if not isinstance(each, RunEnded))
        yield end

    def _state(self, host: str, entry: frames.StateEntry, t: float) -> Iterator[RunEvents]:
        try:
            state = RankState(entry.state)
        except ValueError:
            return  # of a newer agent
        alive = state in LIVING
        self._sync.heard_of(host)
        self._script.rank_is(entry.rank, host, state)
        if entry.planned:
            self._plans_ranks[host, entry.pid] = entry.rank
        if not (entry.planned and alive):
            planned = self._plans_ranks.get((host, entry.pid), entry.rank)
            self._numbers[host, planned] = entry.rank
        lived_on = self._ranks.hosts.get(entry.rank, host)
        if host in self._lost if alive else lived_on != host:
            return  # the others go on without that host, or the rank lives elsewhere now
        if lived_on != host and entry.rank in self._numbered_ranks:
            if entry.planned:
                return
            self._splits.moved(entry.rank, t)
        if not entry.planned:
            self._numbered_ranks.add(entry.rank)
        self._ranks.hosts[entry.rank] = host
        if alive:
            self._stalls.rank_is(entry.rank, entry.pid, t, stalled=state is RankState.STALLED)
        if state is RankState.EXITED and entry.exit_code and self._is_blame(entry.rank):
            state = RankState.FAILED
        yield from self._rank_is(host, entry, state, t)
        yield from self._blame_numbered(t)

    def _is_blame(self, rank: int) -> bool:
        if not self._outcome.has_verdict:
            return False
        first = self._numbered(self._outcome.first_failure())
        return first is not None and first.of_rank and first.rank == rank

    def _rank_is(
        self, host: str, entry: frames.StateEntry, state: RankState, t: float
    ) -> Iterator[RunEvents]:
        rank, alive = entry.rank, state in LIVING
        if alive:
            self._ranks.living[rank] = entry
            self._exited.pop(rank, None)
        else:
            self._ranks.living.pop(rank, None)
            if state is RankState.EXITED:
                self._exited[rank] = entry
            self.stragglers.rank_ended(rank)
            self._stalls.rank_ended(rank)
        yield RankChanged(
            t=t,
            run=self.run,
            rank=rank,
            host=host,
            local_rank=entry.local_rank,
            pid=entry.pid,
            state=state,
            exit_code=UNSET if entry.exit_code is None else entry.exit_code,
            signal=UNSET if entry.signal is None else entry.signal,
            stopped=entry.stopped or UNSET,
        )
        yield from self._points.rank_is(rank, t, alive=alive)
        yield from self._points.heard_of(host, t)
        yield from self._sync.rank_is(rank, t, alive=alive)

    def _called(self, host: str, entry: frames.RollCallEntry, t: float) -> Iterator[RankCalled]:
        call = read_call(entry.call)
        if call is not None and call.rank == entry.rank and self._is_current(host):
            self._stalls.called(call, host, t, starts=entry.why == "start")
            yield RankCalled(
                t=t, run=self.run, rank=call.rank, host=host, why=entry.why, call=call
            )

    def _note(self, host: str, entry: frames.NoteEntry, t: float) -> Iterator[RunEvents]:
        about = entry.host if entry.host in self._hosts else host
        self._script.noted(about, entry)
        if entry.check == CONNECTION_LOST:
            self._worlds.explained()
        finding = note_finding(self._ranks, about, entry, t)
        if entry.check != NODE_LOST:
            yield finding
        elif host == self._coordinator and entry.host == about:
            yield finding
            if finding.severity is Severity.WARN:
                self._lost.add(about)
                self._waiting.discard(about)
            yield from self._take_down({about}, t)  # the ends of its ranks stay unknown
        else:  # only the coordinator decides which node is lost
            yield structs.replace(finding, severity=Severity.INFO)

    def _tell_passed_by(self, t: float) -> Iterator[RunFinding]:
        for host, steps in sorted(self._passed_by.items()):
            if steps:
                yield self._ranks.finding(
                    t,
                    NODE_LOST,
                    f"{count_text(steps, 'step')} of {host} after it was lost {'is' if steps == 1 else 'are'} not counted: the run went on "
                    "without it; what it printed is shown",
                    hosts=(host,),
                    severity=Severity.INFO,
                )
        self._passed_by.clear()

    def _take_down(self, hosts: Set[str], t: float) -> Iterator[RunEvents]:
        for rank, last in sorted(self._ranks.living.items()):
            host = self._ranks.hosts[rank]
            if host in hosts:
                yield from self._rank_is(host, last, RankState.LOST, t)

    def _window(self, host: str, entry: frames.WindowEntry, t: float) -> Iterator[RunEvents]:
        known_on = self._ranks.hosts.get(entry.rank, host)
        if host in self._lost:
            reported = max(map(len, entry.points.values()), default=0)
            self._passed_by[host] += entry.steps or reported
            return
        if known_on != host:  # of before the rank came to live elsewhere, or it lives twice
            if entry.steps:
                yield from self._splits.steps(entry.rank, host, t)
            return
        step = entry.step
        if step >= 0:
            step += self._bases.get(self._restarts.get(host, 0), 0)
            self._last_step = max(self._last_step, -1 if entry.batches else step)
        window = window_event(self.run, host, entry, step, t)
        if window.step >= 0:
            self._stalls.stepped(window)
        yield window
        given = entry.points.items()
        known = {
            name: [each for each in points if each.value is not None] for name, points in given
        }
        yield from self._not_finite.add(entry.rank, cast("dict[str, list[Point]]", known), t)
        if not self._is_current(host):
            return  # of an attempt that another has followed
        yield from self._points.add(entry.rank, entry.points, t, _steps_of(entry))
        yield from self._points.heard_of(host, t)
        self._ranks.hosts.setdefault(entry.rank, host)
        yield from self._all_ranks.add(window)
        yield from self._slow(self.stragglers.add(window), t)

    def sum_up(
        self, host: str, entry: frames.JournalEntry, t: float, timeline: RunTimeline
    ) -> Iterable[RunEvents]:
        """Return the events of ``entry`` as ``feed`` does, but for a window in the course of a run: its sums go into ``timeline``.

        No figure of ``entry`` may be NaN or infinite; stalls are not judged.
        """
        if not isinstance(entry, frames.WindowEntry):
            return self.feed(host, entry, t)
        known_on, view, base = self._summed.get(entry.rank) or self._known(host, entry, timeline)
        if known_on != host or view is None or entry.batches or not self._all_ranks.saw(entry):
            return self.feed(host, entry, t)
        step, waited = entry.step, entry.waited_ms and waited_of(entry.waited_ms)
        if step >= 0:
            step += base
            self._last_step = max(self._last_step, step)
        timeline.sum_up(view, entry, step, waited)
        events: Iterable[RunEvents] = ()
        if entry.points:
            events = self._points.add(entry.rank, entry.points, t, _steps_of(entry))
        if entry.steps and entry.step_ms and entry.step_ms[0] is not None:
            figures = (t, step, entry.step_ms[0], *_figures_of(entry))
            window = partial(window_event, self.run, host, entry, step, t)
            slow = self.stragglers.take(entry.rank, host, figures, waited, window)
            if slow:
                events = chain(events, self._slow(slow, t))
        return events

    def _known(
        self, host: str, entry: frames.WindowEntry, timeline: RunTimeline
    ) -> tuple[str, RankView | None, int]:
        """Return a rank's host, view and offset of its steps, until something else is fed; no view if it has to be, too."""
        view = timeline.ranks.get(entry.rank)
        if (
            view is None
            or view.batches
            or self._ranks.hosts.get(entry.rank) != host
            or self._lost
            or self.ended is not None
            or self._not_finite.waits
            or not self._is_current(host)
        ):
            return host, None, 0
        known = host, view, self._bases.get(self._restart, 0)
        self._summed[entry.rank] = known
        return known

    def _slow(self, stragglers: list[Straggler], t: float) -> Iterator[RunFinding]:
        for straggler in stragglers:
            cause = self._load.cause_of(straggler.together, self.stragglers.newest(), t)
            yield straggler_finding(self._ranks, straggler, t, cause)

    def _begin_attempt(
        self, host: str, entry: frames.AttemptEntry, t: float
    ) -> Iterator[RunEvents]:
        """Take that a host's journal has come to an attempt; the first one to do so begins it for all."""
        yield from self._lines.flush(t, host)
        self._restarts[host] = entry.restart
        if entry.restart <= self._restart:
            return
        self._restart = entry.restart
        self._bases[entry.restart] = self._last_step + 1
        yield from self._points.begin_again(t, self._bases[entry.restart])
        yield from self._not_finite.due(math.inf)
        yield from self._sync.begin_again(t)
        yield from self._worlds.flush(t)
        self._worlds.begin_again()
        self.stragglers.begin_again()
        self._outcome.begin_again()
        self._exited.clear()
        self._numbered_ranks.clear()
        self._plans_ranks.clear()
        self._numbers.clear()
        yield RunRestarted(
            t=t, run=self.run, restart=entry.restart, of=entry.of, checkpoint=entry.checkpoint
        )

    def _is_current(self, host: str) -> bool:
        return self._restarts.get(host, 0) == self._restart

    def _node_ended(self, host: str, entry: frames.EndEntry, t: float) -> Iterator[RunEvents]:
        self._outcome.ended(host, entry)
        self._waiting.discard(host)
        yield from self._blame_numbered(t)
        self._sync.heard_of(host)
        yield from self._points.heard_of(host, t)
        yield from self._lines.flush(t, host)
        yield from self._tell_passed_by(t)
        if not self._waiting and self.ended is None:
            yield from self._finish(t)

    def _blame_numbered(self, t: float) -> Iterator[RunEvents]:
        """Report the first failure, once its host's journal has come to the number that its process group gave it."""
        first, late = self._unblamed, t > self._judged_at + NUMBER_SECONDS
        awaited = first is not None and first.of_rank and first.host in self._waiting
        if first is not None and (
            late or not awaited or (first.host, first.rank) in self._numbers
        ):
            yield from self._blame(t)

    def _blame(self, t: float) -> Iterator[RunEvents]:
        """Report the first failure, once; a stop may have come before its process was at its end."""
        first, self._unblamed = self._numbered(self._unblamed), None
        if first is None:
            return
        last = self._exited.get(first.rank)
        if first.of_rank and last is not None and last.exit_code:
            host = self._ranks.hosts.get(first.rank, first.host)
            yield from self._rank_is(host, last, RankState.FAILED, t)
        yield first_failure_finding(self._ranks, first, self._left(), t)

    def _numbered(self, first: FirstFailure | None) -> FirstFailure | None:
        """Give a rank its own number, of which the coordinator may be ignorant: its host has but one."""
        if first is None:
            return None
        there = [rank for rank, host in self._ranks.hosts.items() if host == first.host]
        known = there[0] if len(there) == 1 else first.rank
        return structs.replace(first, rank=self._numbers.get((first.host, first.rank), known))

    def _left(self) -> tuple[int, ...]:
        ended = self._exited.items()
        return tuple(sorted(rank for rank, last in ended if last.exit_code == 0))

    def _finish(self, t: float) -> Iterator[RunEvents]:
        yield from self._lines.flush(t)
        yield from self._points.flush(t)
        yield from self._not_finite.due(math.inf)
        yield from self._sync.flush(t)
        yield from self._bounds.left_out(t)
        yield from self._tell_passed_by(t)
        yield from self._worlds.flush(t)
        yield from self._take_down(self._hosts - self._outcome.ended_hosts, t)
        found = self._outcome.first_failure()
        first = self._numbered(found)
        if not self._outcome.has_verdict:
            self._unblamed = found
        yield from self._blame(t)
        state, exit_code = self._outcome.state(first)
        if state is EndState.SUCCEEDED:
            first = self._script.judge()
            if first is None:
                yield from self._script.unseen(t)
            else:
                state, exit_code = EndState.FAILED, first.exit_code
                yield first_failure_finding(self._ranks, first, (), t)
        seconds = self._outcome.seconds
        if seconds is None:
            seconds = t - self._started if self._started is not None else 0.0
        self.ended = RunEnded(
            t=t,
            run=self.run,
            state=state,
            exit_code=exit_code,
            seconds=seconds,
            first_failure=UNSET if first is None else first,
            restarts=self._restart or UNSET,
        )
        yield self.ended


def _steps_of(entry: frames.WindowEntry) -> range:
    return range(entry.step + 1 - entry.steps, entry.step + 1)
