"""One run as it is seen: the fold of its events."""

from __future__ import annotations

import math
from typing import assert_never

from msgspec import UNSET

from distconsole.model import run_events
from distconsole.model.findings import Severity
from distconsole.model.time_text import is_time
from distconsole.rpc.frames import WindowEntry
from distconsole.runs.detectors import conclusions
from distconsole.runs.detectors.slowness import own_ms
from distconsole.runs.detectors.stragglers import StragglerWatch, Waited
from distconsole.runs.figures import take_best
from distconsole.runs.logs.last import LastLines
from distconsole.runs.logs.printed import EtaEstimator
from distconsole.runs.pace import is_fresh
from distconsole.runs.rank_view import RankView
from distconsole.runs.series import Band, Series

LAST_LINES = 200
MAX_FINDINGS = 500
MAX_METRIC_NAMES = 256
STEADY_WINDOWS = 3
"""A rank is as slow as in the fastest of its last windows."""
SAID_SHARE = 0.9
"""Ranks' own times are compared if each reports its waits in this share of its steps."""
SAME_STALL_SECONDS = 60.0
"""Seconds after which a diagnosis belongs to another stall."""
PHASE_ORDER = ("interpreter", "import_torch", "init_process_group", "first_step")


class RunTimeline:
    """A run after the events applied so far; ``started`` and ``last_t`` in UNIX seconds.

    Its size is bounded by ranks, hosts, metric names and the limits above. Used by one thread at a time.

    Args:
        stragglers: Of the reducer whose events are applied each before the next one is made: it need
            not judge the same windows again.
    """

    plan: run_events.PlanMade | None = None
    restart: run_events.RunRestarted | None = None
    end: run_events.RunEnded | None = None
    stall: run_events.RunFinding | None = None
    """The newest finding on the cause of a stall."""
    ranks_have_gpus = False
    _farthest: int | None = None  # cached ``steps``

    def __init__(self, stragglers: StragglerWatch | None = None) -> None:
        self.run = ""
        self.ranks: dict[int, RankView] = {}
        self.metrics: dict[str, Series] = {}
        """Name -> curve over steps: mean over the ranks, lowest and highest rank."""
        self.best: dict[str, float] = {}
        """Name -> the best value that the ranks had together."""
        self.metric_last: dict[str, run_events.Metric] = {}
        self.not_finite_since: dict[str, int] = {}
        """Metric -> the first step at which it is not finite, without a break since."""
        self.throughput = Series()
        """Samples a second, summed over the ranks, over UNIX seconds."""
        self.step_ms, self.gpu_use = Band(of_steps=True), Band()
        """Milliseconds and percent, by second."""
        self.gpus: dict[run_events.GpuKey, run_events.GpuSample] = {}
        self.nodes: dict[str, run_events.NodeSample] = {}
        self.links: dict[str, run_events.LinkChanged] = {}
        self.logs = LastLines(LAST_LINES)
        """The last lines, transient ones left out; a ``LogBuffer`` has them all."""
        self.progress: dict[run_events.LogSource, run_events.LogLine] = {}
        """The transient line (a progress bar) that stands there now."""
        self.findings: list[run_events.RunFinding] = []
        self.unsound: run_events.RunFinding | None = None
        """The first finding of this attempt that its ranks do not train one model as they should."""
        self.calls: dict[int, run_events.RankCalled] = {}
        """Rank -> its place at the last call."""
        self.stragglers = stragglers or StragglerWatch()
        """Of the same windows as the reducer's, so that it agrees with its findings on slow ranks."""
        self._judges = stragglers is None
        self.eta = EtaEstimator()
        self.outlived_hosts: set[str] = set()
        """Hosts that the run has lost and goes on without."""
        self.started: float | None = None
        self.last_t: float | None = None
        self._rate_sum = 0.0
        self._resuming: set[str] = set()
        """Metrics without a point since the ranks restarted."""
        self.outlived: set[int] = set()
        """Ranks that failed, and the run goes on without."""
        self.in_batches: set[int] = set()
        """Ranks whose steps are batches, as they have made no step yet."""

    def apply(self, event: run_events.RunEvents) -> None:  # noqa: C901  (one case a class, nothing nested)
        self.run = self.run or event.run
        if self.last_t is None or event.t > self.last_t:
            self.last_t = event.t
        if self.started is None:
            self.started = event.t
        match event:
            case run_events.Window():  # most events are, or lines
                self._window(event)
            case run_events.LogLine():
                self._log(event)
            case run_events.PlanMade():
                self.plan = event
                self.run = event.run
                self.started = event.t
                for host in event.hosts:
                    for local_rank, rank in enumerate(host.ranks):
                        view = self._view(rank, host.host)
                        view.host = host.host
                        view.local_rank = local_rank
            case run_events.RankChanged():
                self._rank(event)
            case run_events.PhaseReached():
                self._phase(event)
            case run_events.Metric():
                self._metric(event)
            case run_events.GpuSample():
                self._gpu(event)
            case run_events.NodeSample():
                self.nodes[event.host] = event
            case run_events.RankCalled():
                self.calls[event.rank] = event
            case run_events.LinkChanged():
                self.links[event.host] = event
            case run_events.RunFinding():
                self._finding(event)
            case run_events.RunRestarted():
                self._begin_again(event)
            case run_events.RunEnded():
                self.end = event
            case _:
                assert_never(event)

    def share(self, stragglers: StragglerWatch) -> None:
        """Take the slow ranks from a reducer, as ``stragglers`` of the constructor does."""
        self.stragglers, self._judges = stragglers, False

    def close(self) -> None:
        """Put the second under way on the curves; nothing is applied after it."""
        self.step_ms.flush()
        self.gpu_use.flush()

    def until(self, now: float) -> float:
        """Return the end of its time at ``now`` (UNIX seconds): ``now``, or its own end."""
        return self.end.t if self.end is not None and is_time(self.end.t) else now

    @property
    def is_kept(self) -> bool:
        """True if it is stored: not if it could not be started, or distconsole did not start it."""
        return (
            bool(self.run) and not self.is_found and (self.end is None or self.end.error is UNSET)
        )

    @property
    def is_found(self) -> bool:
        """True if distconsole did not start it, so that its steps are not seen."""
        return self.plan is not None and self.plan.found is True

    @property
    def name(self) -> str:
        return (self.plan.name if self.plan else "") or self.run

    @property
    def steps(self) -> int | None:
        if self._farthest is None:
            steps = [view.step for view in self.ranks.values() if view.step is not None]
            self._farthest = max(steps, default=None)
        return self._farthest

    @property
    def world(self) -> int:
        """Ranks that the run has, without those of hosts, and those by themselves, that it outlived."""
        planned = self.plan.hosts if self.plan is not None else ()
        lost = sum(len(each.ranks) for each in planned if each.host in self.outlived_hosts)
        gone = (self.ranks[rank] for rank in self.outlived if rank in self.ranks)
        alone = sum(not view.alive and view.host not in self.outlived_hosts for view in gone)
        return len(self.ranks) - lost - alone

    @property
    def mean_samples_s(self) -> float | None:
        """Samples a second over all ranks while they trained, pauses in their steps included; None if unknown."""
        longest = max((view.step_seconds_run for view in self.ranks.values()), default=0.0)
        if not longest:
            return None
        return sum(view.samples_run for view in self.ranks.values()) / longest

    @property
    def step_times(self) -> list[float]:
        """Known mean step times of the run's ranks in milliseconds, the shortest first."""
        times = (view.step_ms_run for view in self.ranks.values())
        return sorted(each for each in times if each is not None)

    @property
    def spread(self) -> float | None:
        """Slowest rank's mean step time over the fastest's; 1.0 is even; None if unknown."""
        times = self.step_times
        return times[-1] / times[0] if times and times[0] else None

    @property
    def own_times(self) -> dict[int, float]:
        """Rank -> its mean step less its waiting beyond that of the rank that waits least, in milliseconds.

        Of all windows but its first one; empty if a rank does not report its waits in nearly all of them.
        """
        views = [view for view in self.ranks.values() if view.step_ms_run is not None]
        if any(v.own_steps < SAID_SHARE * (v.steps - v.first_steps) for v in views):
            return {}  # means of different windows cannot be compared
        least = min((view.waited_ms_run or 0.0 for view in views), default=0.0)
        own = {view.rank: view.own_ms_run + least for view in views if view.own_ms_run is not None}
        return own if len(own) == len(views) else {}

    @property
    def own_spread(self) -> float | None:
        """The longest of the ranks' ``own_times`` over the shortest; None if unknown."""
        own = self.own_times.values()
        return max(own) / min(own) if own and min(own) else None

    @property
    def lost_hosts(self) -> list[str]:
        lost = (host for host, link in self.links.items() if not link.connected)
        return sorted(host for host in lost if host not in self.outlived_hosts)

    def _view(self, rank: int, host: str) -> RankView:
        view = self.ranks.get(rank)
        if view is None:
            view = self.ranks[rank] = RankView(rank, host)
        return view

    def is_told(self, finding: run_events.RunFinding) -> bool:
        """Return True if it blames a lost host that another finding already names."""
        if finding.check != conclusions.FIRST_FAILURE or finding.rank is not UNSET:
            return False
        lost = (each for each in self.findings if each.check == conclusions.NODE_LOST)
        return any((Severity.FAIL, finding.hosts) == (each.severity, each.hosts) for each in lost)

    def _finding(self, event: run_events.RunFinding) -> None:
        if event.check == conclusions.STALL:
            # A later diagnosis of the same stall replaces the first one.
            before = next(
                (f for f in reversed(self.findings) if f.check == conclusions.STALL), None
            )
            if event.kind is not UNSET:
                if before is not None and event.t - before.t < SAME_STALL_SECONDS:
                    self.findings.remove(before)
                self.stall = event
        if event.check == conclusions.CONNECTION_LOST:
            self.stall = event
        if len(self.findings) < MAX_FINDINGS and not self.is_told(event):
            self.findings.append(event)
        if self.unsound is None and conclusions.is_unsound(event):
            self.unsound = event
        if event.check == conclusions.RANK_LOST and event.rank is not UNSET:
            self.outlived.add(event.rank)
        if event.check == conclusions.NODE_LOST and event.severity is Severity.WARN:
            self.outlived_hosts.update(event.hosts)

    @property
    def stall_of_start(self) -> run_events.RunFinding | None:
        """Judged cause that keeps the living ranks from their first step, since they started."""
        started = (view.started_at or 0.0 for view in self.ranks.values() if view.alive)
        found = self.stall
        return None if found is None or found.t < max(started, default=math.inf) else found

    def _rank(self, event: run_events.RankChanged) -> None:
        view = self._view(event.rank, event.host)
        view.host, view.local_rank = event.host, event.local_rank
        view.pid = event.pid if event.pid is not None else view.pid
        view.state = event.state
        if view.alive and view.started_at is None:
            view.started_at = event.t
        if event.exit_code is not UNSET:
            view.exit_code = event.exit_code
        if event.signal is not UNSET:
            view.signal = event.signal
        view.stopped = event.stopped is True
        if not view.alive:
            if view.ended_at is None and is_time(event.t):
                view.ended_at = event.t
            if self._judges:
                self.stragglers.rank_ended(event.rank)
            self._rate_sum -= view.samples_s or 0.0
            view.samples_s = None

    def _begin_again(self, event: run_events.RunRestarted) -> None:
        self.restart = event
        self.eta = EtaEstimator()
        self._resuming = set(self.metrics)
        self.not_finite_since.clear()
        if self._judges:
            self.stragglers.begin_again()
        self._rate_sum, self.unsound, self._farthest, self.stall = 0.0, None, None, None
        for view in self.ranks.values():
            view.begin_again()

    def _phase(self, event: run_events.PhaseReached) -> None:
        view = self._view(event.rank, event.host)
        if event.phase in PHASE_ORDER and math.isfinite(event.seconds):
            view.phases[event.phase] = event.seconds
            if is_time(event.t):  # a process that the script started counts from its own start
                view.started_at = max(view.started_at or 0.0, event.t - event.seconds)
            view.phase = max(view.phases, key=PHASE_ORDER.index)

    def _window(self, event: run_events.Window) -> None:
        view = self._view(event.rank, event.host)
        if view.batches and event.unit is UNSET and event.steps:
            view.begin_steps()
        batches = event.unit is not UNSET or (view.batches and not event.steps)
        if batches is not view.batches:
            view.batches = batches
            (self.in_batches.add if batches else self.in_batches.discard)(view.rank)
        step_ms = (event.step_ms_mean, event.step_ms_p95)
        self._average_step(view, event.steps, step_ms, event.samples_s, event.waited_ms)
        if event.step >= 0:
            self._reach(view, event.step)
        if event.steps > 0:
            view.stepped_at = event.t
            if event.step_ms_mean is not None:
                self.step_ms.put(event.t, event.step_ms_mean)
                view.last_ms = (*view.last_ms[1 - STEADY_WINDOWS :], event.step_ms_mean)
        view.steps += event.steps
        view.skipped += event.skipped
        view.dropped += event.dropped
        view.step_ms_mean, view.step_ms_p95 = event.step_ms_mean, event.step_ms_p95
        view.window = event
        self._wait(view, event)
        for name, value in event.metrics.items():
            if name in view.metrics or len(view.metrics) < MAX_METRIC_NAMES:
                view.metrics[name] = value
        view.last_seen = event.t
        if self._judges:
            self.stragglers.add(event)
        self._add_rate(view, event)

    def _wait(self, view: RankView, event: run_events.Window) -> None:
        """Take its wait; while the last own time is fresh, the excess over it counts as a wait."""
        if event.waited_ms is not None:
            view.waited_ms, *parts = event.waited_ms
            view.parts_waited_ms, view.own_ms, view.own_at = tuple(parts), own_ms(event), event.t
        elif not is_fresh(view.own_at, event.t, view.steady_ms):
            view.waited_ms = view.parts_waited_ms = None
        elif event.step_ms_mean is not None and view.own_ms is not None:
            view.waited_ms = max(0.0, event.step_ms_mean - view.own_ms)

    def _reach(self, view: RankView, step: int) -> None:
        if (far := self._farthest) is not None:
            self._farthest = None if step < (view.step or 0) else max(far, step)
        view.step = step

    def _add_rate(self, view: RankView, event: run_events.Window) -> None:
        """Keep the sum of the ranks' rates; recount it once a second, without silent ranks."""
        self._rate_sum += (event.samples_s or 0.0) - (view.samples_s or 0.0)
        view.samples_s = event.samples_s
        second, last = int(event.t), self.throughput.last_x
        if second > (last or 0.0):
            for other in self.ranks.values():
                if not is_fresh(other.last_seen, event.t, other.steady_ms):
                    other.samples_s = None
            self._rate_sum = sum(other.samples_s or 0.0 for other in self.ranks.values())
            if event.samples_s is not None and not is_fresh(last, second, view.steady_ms):
                self.throughput.interrupt(float(second))
        if event.samples_s is not None:
            self.throughput.put(float(second), self._rate_sum)

    def sum_up(self, view: RankView, entry: WindowEntry, step: int, waited_ms: Waited) -> None:
        """Take the sums of a window of a rank's steps, for a summary: no curve, and no figure of the moment."""
        if step >= 0:
            self._reach(view, step)
        step_ms = entry.step_ms or (None, None)
        self._average_step(view, entry.steps, step_ms, entry.samples_s, waited_ms)
        view.steps += entry.steps

    def _average_step(
        self,
        view: RankView,
        steps: int,
        step_ms: tuple[float | None, float | None],
        samples_s: float | None,
        waited_ms: Waited,
    ) -> None:
        if steps <= 0:
            return
        mean_ms, p95_ms = step_ms
        if samples_s is not None and mean_ms is not None:
            seconds = steps * mean_ms / 1000
            if view.windows <= 1:
                view.samples_run = view.step_seconds_run = 0.0
            view.windows += 1
            view.samples_run += samples_s * seconds
            view.step_seconds_run += seconds
        view.first_steps = view.first_steps or steps
        weight = steps / (view.steps + steps)
        view.step_ms_run = _weigh_in(view.step_ms_run, mean_ms, weight)
        view.step_ms_p95_run = _weigh_in(view.step_ms_p95_run, p95_ms, weight)
        if waited_ms is not None and view.steps:
            view.own_steps += steps
            weight = steps / view.own_steps
            view.waited_ms_run = _weigh_in(view.waited_ms_run, waited_ms[0], weight)
            view.own_ms_run = _weigh_in(view.own_ms_run, (mean_ms or 0.0) - waited_ms[0], weight)

    def _metric(self, event: run_events.Metric) -> None:
        series = self.metrics.get(event.name)
        if series is None:
            if len(self.metrics) >= MAX_METRIC_NAMES:
                return
            series = self.metrics[event.name] = Series()
        if event.name in self._resuming:
            self._resuming.discard(event.name)
            series.cut(event.step)
        series.put(event.step, event.value, event.min, event.max)
        self.metric_last[event.name] = event
        take_best(self.best, event.name, event.value)
        if math.isfinite(event.value):
            self.not_finite_since.pop(event.name, None)
        else:
            self.not_finite_since.setdefault(event.name, event.step)

    def _gpu(self, event: run_events.GpuSample) -> None:
        self.gpus[event.key] = event
        if event.rank is UNSET:
            return
        if event.util is not None:
            self.gpu_use.put(event.t, event.util)
        self._view(event.rank, event.host).sample, self.ranks_have_gpus = event, True

    def _log(self, event: run_events.LogLine) -> None:
        if event.transient:
            self.progress[event.source] = event
            return
        self.progress.pop(event.source, None)
        if event.rank == 0:
            self.eta.read(event.line, event.t)
        self.logs.append(event)


def _weigh_in(mean: float | None, value: float | None, weight: float) -> float | None:
    if mean is None or value is None:
        return value if mean is None else mean
    return mean + (value - mean) * weight
