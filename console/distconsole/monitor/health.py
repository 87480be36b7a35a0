"""How a run goes, as one line in words, the worst thing first. Pure; it knows no clock."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from msgspec import UNSET

from distconsole.model.run_events import RankState, RunEnded
from distconsole.model.time_text import span_text
from distconsole.monitor.conclusions import STRAGGLER
from distconsole.monitor.rank_view import RankView
from distconsole.monitor.series import Series

if TYPE_CHECKING:
    from distconsole.monitor.timeline import RunTimeline

SILENT_SECONDS = 10.0
"""A rank may be silent for so long, or for ten of its steps, before it is said to be."""
SLOW_SHARE = 1.25
"""A rank whose steps take this multiple of the median's is said to be slow."""
OWN_PARTS = {"data": "its data", "forward": "the forward part", "optimizer": "the optimizer"}
"""The parts of a step in which no rank waits for another."""
WARM_UP_STEPS = 20
"""A rank's first steps are slow and say nothing."""

PHASE_WORDS = {
    "interpreter": "is importing torch",
    "import_torch": "is preparing, or waiting for the others",
    "init_process_group": "is on the way to its first step",
    "first_step": "has made its first step",
}
"""The phase that a rank has behind it -> what it does now."""


def health_line(timeline: RunTimeline, now: float) -> str:
    """Return one line that says how the run of ``timeline`` goes at ``now`` (UNIX seconds)."""
    if timeline.end is not None:
        return _ended_line(timeline.end)
    parts = [f"{timeline.world:,} ranks" if timeline.world != 1 else "1 rank"]
    if timeline.samples_s is not None:
        parts.append(f"{timeline.samples_s:,.0f} samples/s")
    slowest = timeline.slowest
    if slowest is not None and slowest.step_ms_mean is not None:
        parts.append(f"step {slowest.step_ms_mean:.3g} ms")
    if loss := _loss(timeline):
        parts.append(loss)
    if timeline.restart is not None:
        parts.append(f"restart {timeline.restart.restart} of {timeline.restart.of}")
    condition = _condition(timeline, now)
    left = _left(timeline, now) if condition == "healthy" else None
    if left is not None:
        parts.append(f"{span_text(left)} left")
    return f"{condition}: {', '.join(parts)}"


def silent_ranks(timeline: RunTimeline, now: float) -> list[RankView]:
    """Return living ranks that made steps and have not finished one for too long, least far first."""
    slowest = timeline.slowest
    limit = max(SILENT_SECONDS, (slowest.step_ms_mean or 0.0) / 100 if slowest else 0.0)
    silent = [
        view
        for view in timeline.ranks.values()
        if view.alive and view.stepped_at is not None and now - view.stepped_at > limit
    ]
    return sorted(silent, key=lambda view: (view.step or 0, view.stepped_at or 0.0, view.rank))


def _loss(timeline: RunTimeline) -> str:
    newest, loss = timeline.metric_last.get("loss"), timeline.metrics.get("loss")
    if newest is not None and not math.isfinite(newest.value):
        return f"loss {newest.value}"
    if loss is None or loss.last is None:
        return ""
    return f"loss {loss.last:.3g} {_trend(loss)}".rstrip()


def _left(timeline: RunTimeline, now: float) -> float | None:
    slowest = timeline.slowest
    metrics = {name: metric.value for name, metric in timeline.metric_last.items()}
    step_ms = slowest.step_ms_mean if slowest is not None else None
    return timeline.outlook.seconds_left(now, timeline.steps, step_ms, metrics)


def _condition(timeline: RunTimeline, now: float) -> str:
    there = list(timeline.ranks.values())
    if timeline.outlived_hosts:
        # Ranks are numbered anew without it, so the last numbers are nobody's.
        there = [view for view in there if view.rank < timeline.world or view.alive]
        if not any(view.alive for view in there):
            return f"beginning again without {', '.join(sorted(timeline.outlived_hosts))}"
    failed = [v for v in there if v.state is RankState.FAILED and v.rank not in timeline.outlived]
    if failed:
        return f"rank {min(view.rank for view in failed)} failed"
    if timeline.lost_hosts:
        lost = timeline.lost_hosts
        return f"no connection to {', '.join(lost[:3])}{_and_more(len(lost) - 3)}"
    silent = silent_ranks(timeline, now)
    stalled = sorted((v for v in there if v.state is RankState.STALLED), key=lambda v: v.rank)
    if stalled:
        return _stalled(stalled, silent, now)
    if all(view.step is None for view in timeline.ranks.values()):
        return f"starting{_slowest_start(timeline)}"
    if silent:
        return _silent(timeline, silent, now)
    newest = timeline.metric_last.get("loss")
    if newest is not None and not math.isfinite(newest.value):
        since = timeline.not_finite_since.get("loss", newest.step)
        return f"loss is {newest.value} since step {since}"
    return _slow(there) or _held_up(timeline, there) or "healthy"


def _stalled(stalled: list[RankView], silent: list[RankView], now: float) -> str:
    first = next((view for view in silent if view.state is RankState.STALLED), stalled[0])
    words = f"rank {first.rank} stalled"
    if first.stepped_at is not None and now > first.stepped_at + 1:
        words = f"{words} on {first.host}, no step for {span_text(now - first.stepped_at)}"
    return words + _and_more(len(stalled) - 1)


def _silent(timeline: RunTimeline, silent: list[RankView], now: float) -> str:
    """Where one rank hangs all soon do: the one that is least far is to blame."""
    alive = [view for view in timeline.ranks.values() if view.alive]
    first = silent[0]
    since = span_text(now - (first.stepped_at or now))
    if len(silent) < len(alive):
        words = f"rank {first.rank} on {first.host} has not finished a step for {since}"
        return words + _and_more(len(silent) - 1)
    since = span_text(now - max(view.stepped_at or 0.0 for view in silent))
    farthest = silent[-1].step or 0
    if len(silent) > 1 and (first.step or 0) < farthest:
        return (
            f"no step for {since}, rank {first.rank} on {first.host} is behind"
            f" (step {first.step or 0:,} of {farthest:,})"
        )
    return f"no step for {since}"


def _slow(there: list[RankView]) -> str:
    known = [
        v for v in there if v.alive and v.steps >= WARM_UP_STEPS and v.step_ms_mean is not None
    ]
    if len(known) < 3:
        return ""
    typical = median(view.step_ms_mean or 0.0 for view in known)
    worst = max(known, key=lambda view: view.step_ms_mean or 0.0)
    own = worst.step_ms_mean or 0.0
    if not typical or own < SLOW_SHARE * typical:
        return ""
    return f"rank {worst.rank} on {worst.host} is slow, {own:.3g} ms a step where {typical:.3g} is usual"


def _held_up(timeline: RunTimeline, there: list[RankView]) -> str:
    """Name the rank that was found to be slow, while its own part of a step still is.

    Where ranks wait for each other, all their steps take as long as the slowest rank's.
    """
    found = {each.rank for each in timeline.findings if each.check == STRAGGLER}
    slow = [v for v in there if v.alive and v.rank in found]
    for view in sorted(slow, key=lambda view: view.rank):
        for part in OWN_PARTS:
            own = getattr(view, f"{part}_ms")
            others = [
                known
                for other in there
                if other.alive and other is not view
                if (known := getattr(other, f"{part}_ms")) is not None
            ]
            if own is None or not others:
                continue
            usual = median(others)
            if own - usual > (SLOW_SHARE - 1) * (view.step_ms_mean or own):
                return (
                    f"rank {view.rank} on {view.host} is slow, {own:.3g} ms for {OWN_PARTS[part]} "
                    f"where {usual:.3g} is usual"
                )
    return ""


def _and_more(count: int) -> str:
    return f" (and {count:,} more)" if count > 0 else ""


def _slowest_start(timeline: RunTimeline) -> str:
    """Say what the rank that is least far along does."""
    living = [view for view in timeline.ranks.values() if view.alive]
    told = [view for view in living if view.phase]
    if not told:
        return ""
    last = min(living, key=lambda view: (len(view.phases), view.rank))
    same = sum(len(view.phases) == len(last.phases) for view in living)
    does = PHASE_WORDS.get(last.phase or "", "has not started Python yet")
    others = _and_more(same - 1)
    return f", rank {last.rank} on {last.host}{others} {does}"


def _ended_line(end: RunEnded) -> str:
    if end.error is not UNSET:
        return f"not started: {end.error}"
    line = f"{end.state} after {end.seconds:.1f} s, exit code {end.exit_code}"
    if end.restarts:
        line += f", {restarts_text(end.restarts)}"
    first = end.first_failure
    if first is not UNSET and first:
        line += f"; rank {first.rank} on {first.host} failed first: {first.error}"
    return line


def restarts_text(count: int) -> str:
    """Return ``1 restart`` or ``3 restarts``."""
    return "1 restart" if count == 1 else f"{count} restarts"


def _trend(series: Series) -> str:
    """Return an arrow that compares the last tenth of a curve with the tenth before."""
    count = max(1, len(series) // 10)
    if len(series) < 2 * count or len(series) < 2:
        return ""
    recent = sum(series.values[-count:]) / count
    before = sum(series.values[-2 * count : -count]) / count
    if abs(recent - before) <= 0.005 * max(abs(recent), abs(before), 1e-12):
        return "→"
    return "↓" if recent < before else "↑"
