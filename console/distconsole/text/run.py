"""A run as lines: the ranks' output to stdout and stderr, their events to stderr, or to the transcript."""

from __future__ import annotations

import time
from typing import assert_never

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.names import count_text, ranks_text
from distconsole.model.run_events import (
    EndState,
    GpuSample,
    LinkChanged,
    LogLine,
    Metric,
    NodeSample,
    PhaseReached,
    PlanMade,
    RankCalled,
    RankChanged,
    RankState,
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.model.time_text import duration_text
from distconsole.runs.health import hang_text, health_line
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.runs.present import done_text, unit_of
from distconsole.runs.rank_view import ENDED_BY_STOP
from distconsole.runs.timeline import RunTimeline
from distconsole.text.output import Output
from distconsole.text.progress import Bars, line_text, name_text

PROGRESS_SECONDS = 10.0
"""In a pipe, one line this often says how the run is going."""
HAVE_ROUNDS = ("torchrun", "horovod")
"""Launchers whose ranks may all begin again without a restart of the run."""


class RunText:
    """Prints one run.

    Args:
        watchable: Whether it says how to watch the run, which is started here, on a screen.
    """

    def __init__(self, output: Output, *, watchable: bool = False) -> None:
        self._watchable = self._offers_watching = watchable
        self._output = output
        self._timeline = RunTimeline()
        self._bars = Bars(output)
        self._told, self._told_at = "", float("inf")
        self._all_running = False

    def show(self, event: RunEvents) -> None:
        """Print what ``event`` is worth, and keep the status up to date."""
        if isinstance(event, LogLine):
            # By far the most frequent, and no line here depends on past lines.
            self.log(event)
            return
        self._begin_next(event)
        self._timeline.apply(event)
        match event:
            case PlanMade():
                say = self._output.say
                paint = self._output.paint_err
                say(f"{paint('run', 'bold')} {event.run}: {event.launcher} launcher ({event.why})")
                for host in event.hosts:
                    ranks = "rank" if len(host.ranks) == 1 else "ranks"
                    say(f"    {host.host}: {ranks} {ranks_text(host.ranks)} of {event.world_size}")
            case RankChanged():
                self._rank(event)
            case RunFinding():
                self._finding(event)
            case LinkChanged():
                self._link(event)
            case RunRestarted():
                self._all_running = False
                self._output.say(self._output.paint_err(note_text(event), "yellow", "bold"))
            case RunEnded():
                self._end(event)
            case PhaseReached() | Window() | Metric() | GpuSample() | NodeSample() | RankCalled():
                self._progress()
            case _:
                assert_never(event)

    def _begin_next(self, event: RunEvents) -> None:
        """Forget a run that has ended, if ``event`` is of the one that follows in a requeued job."""
        if self._timeline.end is not None and event.run != self._timeline.run:
            self._timeline, self._all_running = RunTimeline(), False
            self._watchable = self._offers_watching

    def _rank(self, event: RankChanged) -> None:
        if self._watchable:  # not with the plan: a run that is refused cannot be watched
            self._watchable = False
            self._output.say(f"watch it: distconsole attach {event.run}")
        if event.stopped is True:
            self._output.say(f"rank {event.rank} on {event.host}: {ENDED_BY_STOP}")
            return
        bad = event.state in (RankState.FAILED, RankState.KILLED, RankState.STALLED)
        if bad or (event.state is RankState.EXITED and event.exit_code):
            detail = f" with exit code {event.exit_code}" if event.exit_code is not UNSET else ""
            colour = "yellow" if event.state is RankState.STALLED else "red"
            mark = self._output.paint_err(event.state.value, colour)
            self._output.say(f"rank {event.rank} on {event.host}: {mark}{detail}")
            return
        plan, views = self._timeline.plan, self._timeline.ranks.values()
        running = sum(view.state is RankState.RUNNING for view in views)
        if event.state is not RankState.RUNNING:
            again = event.state is RankState.STARTING and plan and plan.launcher in HAVE_ROUNDS
            self._all_running = self._all_running and not again
            return
        if plan is not None and running == self._timeline.world and not self._all_running:
            self._all_running = True
            self._output.say("the rank runs" if running == 1 else f"all {running} ranks run")

    def log(self, event: LogLine, *, err: bool = True) -> None:
        """Print a line; without ``err`` as data, whichever stream it was printed to."""
        if event.transient:
            self._bars.show(event)
            return
        self._bars.end(event)
        err = err and event.stream == "err"
        paint = self._output.paint_err if err else self._output.paint_out
        line = f"{paint(name_text(event), 'dim')} {line_text(event, paint)}"
        (self._output.say if err else self._output.data)(line)

    def _finding(self, event: RunFinding) -> None:
        if self._timeline.is_told(event):
            return
        say, paint = self._output.say, self._output.paint_err
        say(f"{paint.severity(event.severity)} {event.summary}")
        for line in event.seen.splitlines():
            say(f"     {line}")
        if event.hint:
            say(f"     {paint('hint:', 'cyan')} {event.hint}")

    def _link(self, event: LinkChanged) -> None:
        self._output.say(note_text(event))
        if self._output.live:  # nothing else may come for long
            health = health_line(self._timeline, time.time())
            self._output.status(health, old_after=FRESH_SECONDS)

    def _progress(self) -> None:
        now = time.time()
        if self._output.live:
            if not self._bars.living:
                self._output.status(health_line(self._timeline, now), old_after=FRESH_SECONDS)
            return
        self._told_at = min(self._told_at, now)
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at, before = now, self._told
            self._told = health_line(self._timeline, now)
            if self._told != before:
                self._output.say(self._told)

    def _end(self, end: RunEnded) -> None:
        if end.error is not UNSET:
            return  # it is told as the error that it is
        colour = {EndState.SUCCEEDED: "green", EndState.FAILED: "red", EndState.STOPPED: "yellow"}
        state = self._output.paint_err(end.state.value, colour[end.state], "bold")
        how = _end_text(end, done_text(self._timeline)) + hang_text(self._timeline)
        self._output.say(f"{state} {how}")
        failure = end.first_failure
        if failure is not UNSET:
            self._output.say(f"first failure: {failure.short_blame}")
        for name, metric in sorted(self._timeline.metric_last.items()):
            spread = f" (ranks {metric.min:.6g} to {metric.max:.6g})"
            several = spread if metric.ranks > 1 and metric.min != metric.max else ""
            self._output.say(
                f"    {name} {metric.value:.6g} at {unit_of(self._timeline)} {metric.step}{several}"
            )


NOTED = (PlanMade, RunFinding, LinkChanged, RunRestarted, RunEnded)
"""Events for the transcript; the others are too many."""


def note_text(event: RunEvents, done: str = "") -> str:
    """Return a line for the transcript of a run, with how much is ``done``, that is drawn elsewhere; mostly none."""
    match event:
        case PlanMade():
            ranks = (
                f"{count_text(event.world_size, 'rank')} on {count_text(len(event.hosts), 'host')}"
            )
            where = f"{ranks}, {event.launcher} launcher"
            return f"run {event.run}: {where} ({event.why})"
        case RunFinding() if event.severity in (Severity.WARN, Severity.FAIL):
            return f"{event.severity.value}: {event.summary}"
        case LinkChanged():
            gone = f"connection lost ({event.reason}); the run goes on, trying again"
            return f"{event.host}: {'connected again' if event.connected else gone}"
        case RunRestarted():
            return f"restart {event.restart} of {event.of}"
        case RunEnded():
            blame = "" if event.first_failure is UNSET else f"; {event.first_failure.blame}"
            return f"{event.run} {event.state.value} {_end_text(event, done)}{blame}"
        case _:
            return ""


def _end_text(end: RunEnded, done: str) -> str:
    parts = [f"after {duration_text(end.seconds)}"]
    if done:
        parts.append(done)
    if end.restarts:
        parts.append(count_text(end.restarts, "restart"))
    if end.state is not EndState.SUCCEEDED:
        parts.append(f"exit code {end.exit_code}")
    return ", ".join(parts)
