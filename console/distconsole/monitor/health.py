"""How a run goes, as one line in words, the worst thing first. Pure; it knows no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from msgspec import UNSET

from distconsole.model.run_events import RankState, RunEnded
from distconsole.model.time_text import span_text, unusual_text
from distconsole.monitor.conclusions import STRAGGLER
from distconsole.monitor.freshness import is_fresh
from distconsole.monitor.present import Present, age_text, present
from distconsole.monitor.rank_view import RankView
from distconsole.monitor.series import Series
from distconsole.monitor.timeline import RunTimeline

SILENT_SECONDS = 10.0
"""A rank may be silent for so long, or for ten of its steps, before it is said to be."""
SLOW_SHARE = 1.25
"""A rank whose steps take this multiple of the median's is said to be slow."""
OWN_PARTS = {"data": "its data", "forward": "the forward part", "optimizer": "the optimizer"}
"""The parts of a step in which no rank waits for another."""
WARM_UP_STEPS = 20
"""A rank's first steps are slow and say nothing."""

LONG_START_SECONDS = 30.0
"""From then on it is said for how long ranks have been on one part of their way to the first step."""

PHASE_WORDS = {
    None: ("starts Python or imports torch", "start Python or import torch"),
    "interpreter": ("imports torch", "import torch"),
    "import_torch": ("waits for the group", "wait for the group"),
    "init_process_group": ("is before its first step", "are before their first step"),
    "first_step": ("has made its first step", "have made their first step"),
}
"""The phase that ranks have behind them -> what one does now, and what several do."""


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slow.

    Attributes:
        view: Which one.
        own_ms: How long its step takes it, or that part of it.
        usual_ms: How long it takes the others.
        part: The part of a step that is slow, a key of ``OWN_PARTS``; empty for the whole step.
    """

    view: RankView
    own_ms: float
    usual_ms: float
    part: str = ""

    @property
    def words(self) -> str:
        """Which one is how slow."""
        what = f"for {OWN_PARTS[self.part]}" if self.part else "a step"
        how = unusual_text(self.own_ms, what, self.usual_ms)
        return f"rank {self.view.rank} on {self.view.host} is slow, {how}"


def health_line(timeline: RunTimeline, now: float) -> str:
    """Return one line that says how the run of ``timeline`` goes at ``now`` (UNIX seconds)."""
    if timeline.end is not None:
        return _ended_line(timeline.end)
    parts = [f"{timeline.world:,} ranks" if timeline.world != 1 else "1 rank"]
    figures = present(timeline, now)
    if figures.samples_s is not None or any(view.windows for view in timeline.ranks.values()):
        parts.append(figures.rate_text)
    if timeline.slowest is not None:
        parts.append(f"step {figures.step_text}")
    if loss := _loss(timeline, figures, now):
        parts.append(loss)
    if timeline.restart is not None:
        parts.append(f"restart {timeline.restart.restart} of {timeline.restart.of}")
    condition = _condition(timeline, now)
    left = _left(timeline, figures, now) if condition == "healthy" else None
    if left is not None:
        parts.append(f"{span_text(left)} left")
    return f"{condition}: {', '.join(parts)}"


def silent_ranks(timeline: RunTimeline, now: float) -> dict[RankView, float]:
    """Return living ranks that made steps and have finished none for too long, least far first.

    How long is told in seconds: until now, or until the newest word of a host whose news is old, as
    it is while what was missed is read. Of what has happened since nobody knows.
    """
    slowest = timeline.slowest
    limit = max(SILENT_SECONDS, (slowest.step_ms_mean or 0.0) / 100 if slowest else 0.0)
    told = {host: _told_until(timeline, host, now) for host in timeline.nodes}
    silent = {
        view: seconds
        for view in timeline.ranks.values()
        if view.stepped_at is not None
        if (seconds := told.get(view.host, now) - view.stepped_at) > limit
        or view.state is RankState.STALLED
        if view.alive
    }
    order = sorted(silent, key=lambda view: (view.step or 0, view.stepped_at or 0.0, view.rank))
    return {view: silent[view] for view in order}


def _loss(timeline: RunTimeline, figures: Present, now: float) -> str:
    newest, loss = timeline.metric_last.get("loss"), timeline.metrics.get("loss")
    if newest is None or loss is None:
        return ""
    age = age_text(newest.t, now, figures.step_ms)
    if not math.isfinite(newest.value):
        return f"loss {newest.value}{age}"
    trend = "" if age else f" {_trend(loss)}"
    return f"loss {newest.value:.3g}{age}{trend}".rstrip()


def _left(timeline: RunTimeline, figures: Present, now: float) -> float | None:
    metrics = {name: metric.value for name, metric in timeline.metric_last.items()}
    return timeline.outlook.seconds_left(now, timeline.steps, figures.step_ms, metrics)


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
        since = span_text(now - min(timeline.links[host].t for host in lost))
        return f"no connection to {', '.join(lost[:3])}{_and_more(len(lost) - 3)} for {since}"
    if stale := _stale(timeline, there, now):
        return stale
    if all(view.step is None for view in timeline.ranks.values()):
        return f"starting{_slowest_start(timeline, now)}"
    if silent := silent_ranks(timeline, now):
        return _silent(there, silent)
    if wrong := _wrong(timeline):
        return wrong
    slow = slow_rank(timeline)
    return slow.words if slow is not None else "healthy"


def _wrong(timeline: RunTimeline) -> str:
    """Say what makes the training's result worthless, though every rank goes on."""
    broken = sorted(timeline.not_finite_since.items(), key=lambda each: each[0] != "loss")
    for name, step in broken:
        return f"{name} is {timeline.metric_last[name].value} since step {step}"
    return "" if timeline.unsound is None else timeline.unsound.summary.partition(";")[0]


def _told_until(timeline: RunTimeline, host: str, now: float) -> float:
    """Return until when it is known how ``host`` is: now, if its newest word is hardly older."""
    newest = timeline.nodes[host].t
    return now if is_fresh(newest, now) else newest


def _stale(timeline: RunTimeline, there: list[RankView], now: float) -> str:
    hosts = sorted({view.host for view in there if view.alive})
    ages = {
        host: now - timeline.nodes[host].t
        for host in hosts
        if host in timeline.nodes and now - timeline.nodes[host].t > SILENT_SECONDS
    }
    if not ages:
        return ""
    oldest = max(ages, key=lambda host: ages[host])
    if len(ages) == len(hosts) > 1:
        return f"the newest word of the hosts is {span_text(min(ages.values()))} old"
    more = _and_more(len(ages) - 1)
    return f"no word from {oldest} for {span_text(ages[oldest])}{more}"


def _silent(there: list[RankView], silent: dict[RankView, float]) -> str:
    """Where one rank hangs all soon do: the one that is least far is to blame, if one is."""
    count, living = len(silent), sum(view.alive for view in there)
    first, farthest = next(iter(silent)), max(view.step or 0 for view in silent)
    behind = [view for view in silent if (view.step or 0) == (first.step or 0)]
    if count < living:
        since = span_text(silent[first])
        words = f"rank {first.rank} on {first.host} has not finished a step for {since}"
        return words + _and_more(count - 1)
    since = span_text(min(silent.values()))
    if len(behind) == count:
        return f"no rank has finished a step for {since}" if count > 1 else f"no step for {since}"
    return (
        f"no step for {since}, rank {first.rank} on {first.host}{_and_more(len(behind) - 1)} is behind"
        f" (step {first.step or 0:,} of {farthest:,})"
    )


def slow_rank(timeline: RunTimeline) -> SlowRank | None:
    """Return the rank that is slow, or that was found to hold the others up and still does; None where all are even."""
    return _slow(timeline) or _held_up(timeline)


def _slow(timeline: RunTimeline) -> SlowRank | None:
    """Return the slowest rank, if it is much slower than is usual, and not only for a moment."""
    known = [
        v
        for v in timeline.ranks.values()
        if v.alive and v.steps >= WARM_UP_STEPS and v.step_ms_mean is not None
    ]
    if len(known) < 3:
        return None
    typical = median(view.step_ms_mean or 0.0 for view in known)
    worst = max(known, key=lambda view: view.step_ms_mean or 0.0)
    own = worst.step_ms_mean or 0.0
    if not typical or own < SLOW_SHARE * typical:
        return None
    if (worst.steady_ms or own) < SLOW_SHARE * median(view.steady_ms or 0.0 for view in known):
        return None
    return SlowRank(worst, own, typical)


def _held_up(timeline: RunTimeline) -> SlowRank | None:
    """Return the rank that was found to be slow, while its own part of a step still is.

    Where ranks wait for each other, all their steps take as long as the slowest rank's.
    """
    there = timeline.ranks.values()
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
                return SlowRank(view, own, usual, part)
    return None


def _and_more(count: int) -> str:
    return f" (and {count:,} more)" if count > 0 else ""


def _slowest_start(timeline: RunTimeline, now: float) -> str:
    """Say what the ranks that are least far along do."""
    living = [view for view in timeline.ranks.values() if view.alive and view.started_at]
    if not living:
        return ""
    fewest = min(len(view.phases) for view in living)
    last = [view for view in living if len(view.phases) == fewest]
    first = min(last, key=lambda view: view.rank)
    seconds = min(
        now - (view.started_at or now) - max(view.phases.values(), default=0.0) for view in last
    )
    if seconds < LONG_START_SECONDS and not any(view.phases for view in living):
        return ""
    one, several = PHASE_WORDS[first.phase]
    if len(last) == len(living) > 1:
        words = f"all {several}"
    else:
        words = f"rank {first.rank} on {first.host}{_and_more(len(last) - 1)} {one}"
    return f", {words} for {span_text(seconds)}" if seconds >= LONG_START_SECONDS else f", {words}"


def _ended_line(end: RunEnded) -> str:
    if end.error is not UNSET:
        return f"not started: {end.error}"
    line = f"{end.state} after {end.seconds:.1f} s, exit code {end.exit_code}"
    if end.restarts:
        line += f", {restarts_text(end.restarts)}"
    first = end.first_failure
    if first is not UNSET and first:
        line += f"; {first.blame}"
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
