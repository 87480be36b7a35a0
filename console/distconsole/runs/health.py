"""How a run goes, as one line in words, the worst thing first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from math import sqrt
from statistics import fmean, median, pvariance

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import EndState, RankState, RunEnded, RunFinding
from distconsole.model.time_text import duration_text, span_text, unusual_text
from distconsole.runs.detectors import slowness
from distconsole.runs.detectors.stragglers import cost_text, who_text
from distconsole.runs.diagnosis.blaming import plural, ranks_text
from distconsole.runs.diagnosis.causes import cause_of
from distconsole.runs.diagnosis.roll import NEVER_STEPPED_SECONDS, Roll
from distconsole.runs.diagnosis.stacks import own_place
from distconsole.runs.pace import is_late, phase_seconds
from distconsole.runs.present import (
    Present,
    age_text,
    loss_name_of,
    present,
    reading_text,
    unit_of,
)
from distconsole.runs.rank_view import RankView
from distconsole.runs.series import Series
from distconsole.runs.timeline import PHASE_ORDER, RunTimeline

PARTS_IN_WORDS = {
    slowness.STEP: "a step",
    slowness.DATA: "for its data",
    slowness.FORWARD: "for the forward part",
    slowness.BACKWARD: "for the backward part",
    slowness.OPTIMIZER: "for the optimizer",
    slowness.REST: "a step outside data, forward, backward and optimizer",
}

LONG_START_SECONDS = 30.0
"""Seconds in one phase of the start after which its duration is shown."""

CALL_IS_OLD_SECONDS = 10.0
"""Seconds after which the place of a rank is shown with its age."""

TREND_POINTS = 100
"""So many points of a curve are compared with as many before them."""

PHASE_WORDS = {
    None: ("starts, imports or prepares", "start, import or prepare"),
    "interpreter": ("imports torch", "import torch"),
    "import_torch": ("waits for the group", "wait for the group"),
    "init_process_group": ("is before its first step", "are before their first step"),
    "first_step": ("has made its first step", "have made their first step"),
}
"""The phase that ranks have behind them -> the present activity of one, and of several.

A rank reports the first two once it asks for its group, or makes a step."""


class Tone(Enum):
    """How urgent a line about a run is."""

    GOOD = auto()
    """All ranks make steps, and none is slow."""
    NOTE = auto()
    """It starts, or ranks pause, as in a validation: no stall was judged."""
    WARN = auto()
    BAD = auto()


ENDED_TONES = {
    EndState.SUCCEEDED: Tone.GOOD,
    EndState.FAILED: Tone.BAD,
    EndState.STOPPED: Tone.WARN,
}


@dataclass(frozen=True, slots=True)
class Health:
    """Health of a run: its urgency, in one word, in a ``sentence``, and with its figures in one ``line``."""

    tone: Tone
    word: str
    sentence: str
    line: str = ""


def health_line(timeline: RunTimeline, now: float) -> str:
    """Return one line on the health of the run of ``timeline`` at ``now`` (UNIX seconds)."""
    return health_of(timeline, now).line


def health_of(timeline: RunTimeline, now: float, figures: Present | None = None) -> Health:
    """Return how the run of ``timeline`` goes at ``now`` (UNIX seconds); ``figures`` are those of then, if known."""
    if (end := timeline.end) is not None:
        line = _end_line(end) + hang_text(timeline)
        word = line.partition(" ")[0] if end.error is UNSET else "not started"
        return Health(ENDED_TONES[end.state], word, line.removeprefix(word).lstrip(": "), line)
    parts = [count_text(timeline.world, "rank")]
    figures = figures or present(timeline, now)
    if figures.samples_s is not None or any(view.windows for view in timeline.ranks.values()):
        parts.append(figures.rate_text)
    if any(view.step_ms_run is not None for view in timeline.ranks.values()):
        parts.append(f"{unit_of(timeline)} {figures.step_text}")
    if loss := _loss(timeline, figures, now):
        parts.append(loss)
    if timeline.restart is not None:
        parts.append(f"restart {timeline.restart.restart} of {timeline.restart.of}")
    found = _condition(timeline, now, figures)
    tone, word, sentence = found.tone, found.word, found.sentence
    left = seconds_left(timeline, figures, now) if tone is Tone.GOOD else None
    if left is not None:
        parts.append(f"{span_text(left)} left")
    begin = word if word == "healthy" else f"{word}{sentence}" if word == "starting" else sentence
    return Health(tone, word, sentence.lstrip(", "), f"{begin}: {', '.join(parts)}")


def _loss(timeline: RunTimeline, figures: Present, now: float) -> str:
    name = loss_name_of(timeline)
    if not name:
        return ""
    newest, loss = timeline.metric_last[name], timeline.metrics[name]
    age = age_text(newest.t, now, figures.step_ms)
    if not math.isfinite(newest.value):
        return f"{name} {newest.value}{age}"
    trend = "" if age else f" {trend_of(loss)}"
    return f"{name} {reading_text(newest.value)}{age}{trend}".rstrip()


def seconds_left(timeline: RunTimeline, figures: Present, now: float) -> float | None:
    """Return the remaining time at ``now`` (UNIX seconds); None if unknown."""
    metrics = {name: metric.value for name, metric in timeline.metric_last.items()}
    return timeline.eta.seconds_left(now, timeline.steps, figures.step_ms, metrics)


def _condition(timeline: RunTimeline, now: float, figures: Present) -> Health:
    gone = figures.gone
    if timeline.outlived_hosts:
        # Ranks are numbered again without it, so the last numbers are void.
        gone = [view for view in gone if view.rank < timeline.world]
        if not figures.living:
            lost = ", ".join(sorted(timeline.outlived_hosts))
            return Health(Tone.WARN, "restarting", f"beginning again without {lost}")
    failed = {view.rank for view in gone if view.state is RankState.FAILED} - timeline.outlived
    if failed:
        return Health(Tone.BAD, "failed", f"{ranks_text(sorted(failed))} failed")
    if gone and not figures.living:
        return Health(Tone.NOTE, "ended", "all ranks have ended, and the run goes on")
    if timeline.lost_hosts:
        lost_hosts = timeline.lost_hosts
        since = span_text(now - min(timeline.links[host].t for host in lost_hosts))
        more = _and_more(len(lost_hosts) - 3)
        words = f"no connection to {', '.join(lost_hosts[:3])}{more} for {since}"
        return Health(Tone.WARN, "lost", words)
    if unheard := _unheard(timeline, figures, now):
        return Health(Tone.WARN, "silent", unheard)
    if timeline.is_found:
        return Health(Tone.NOTE, "running", "its steps are not seen: nobody prepared it")
    if all(view.step is None for view in timeline.ranks.values()):
        return Health(Tone.NOTE, "starting", _slowest_start(timeline, now))
    return _condition_of_steps(timeline, figures, now)


def _condition_of_steps(timeline: RunTimeline, figures: Present, now: float) -> Health:
    """Return the headline on the ranks' progress; a stalled rank comes before all, a pause after a spoilt result."""
    if any(view.state is RankState.STALLED for view in figures.standing):
        found = stall_of(timeline, figures)
        proven = found is not None and found.severity is Severity.WARN
        still = span_text(min(figures.standing.values()))
        why = _standing(figures) if found is None else f"no step for {still}: {found.summary}"
        return Health(Tone.BAD if proven else Tone.WARN, "hung", why)
    if behind := _left_behind(timeline, figures, now):
        return Health(Tone.WARN, "behind", behind)
    if wrong := _wrong(timeline):
        return Health(Tone.WARN, "wrong", wrong)
    if figures.standing:
        return Health(Tone.NOTE, "pausing", _standing(figures))
    if figures.slow:
        return Health(Tone.WARN, "slow", _slow(figures.slow[0], timeline))
    return Health(Tone.GOOD, "healthy", "")


def _slow(slow: slowness.Straggler, timeline: RunTimeline) -> str:
    how = unusual_text(slow.own_ms, PARTS_IN_WORDS[slow.part], slow.median_ms)
    who = who_text(slow, {slow.rank: timeline.ranks[slow.rank].host})
    text = f"{who} {'is' if slow.is_one else 'are'} slow, {how}"
    if not slow.cost_ms:
        return text
    since = f" since step {slow.since_step:,}" if slow.since_step >= 0 else ""
    return f"{text}, costs {cost_text(slow)} of each step{since}"


def _wrong(timeline: RunTimeline) -> str:
    """Return why the training's result is worthless, though every rank goes on."""
    broken = sorted(timeline.not_finite_since.items(), key=lambda each: each[0] != "loss")
    for name, step in broken:
        return f"{name} is {timeline.metric_last[name].value}, not finite since step {step}"
    return "" if timeline.unsound is None else timeline.unsound.summary.partition(";")[0]


def _unheard(timeline: RunTimeline, figures: Present, now: float) -> str:
    """Name hosts without a present report, that have reported themselves or steps before."""
    if not figures.unseen:
        return ""
    hosts = {view.host for view in timeline.ranks.values() if view.alive}
    told = {host: node.t for host, node in timeline.nodes.items()}
    unseen = {
        view.host for view in figures.unseen if view.host in told or view.stepped_at is not None
    }
    ages = {host: now - told.get(host, timeline.last_t or now) for host in sorted(unseen)}
    if not ages:
        return ""
    oldest = max(ages, key=lambda host: ages[host])
    if len(ages) == len(hosts) > 1:
        return f"the newest word of the hosts is {span_text(min(ages.values()))} old"
    more = _and_more(len(ages) - 1)
    return f"no word from {oldest} for {span_text(ages[oldest])}{more}"


def stall_of(timeline: RunTimeline, figures: Present) -> RunFinding | None:
    """Return the judged cause of the present stall; None if unknown."""
    found = timeline.stall
    last_step = max((view.stepped_at or 0.0 for view in figures.standing), default=math.inf)
    return None if found is None or found.t < last_step else found


def _standing(figures: Present) -> str:
    """Where one rank hangs all soon do: the one that is least far is to blame, if one is."""
    standing = figures.standing
    count, living = len(standing), figures.living
    first, farthest = next(iter(standing)), max(view.step or 0 for view in standing)
    behind = [view for view in standing if (view.step or 0) == (first.step or 0)]
    if count < living:
        since = span_text(standing[first])
        words = f"rank {first.rank} on {first.host} has not finished a step for {since}"
        return words + _and_more(count - 1)
    since = span_text(min(standing.values()))
    if len(behind) == count:
        return f"no rank has finished a step for {since}" if count > 1 else f"no step for {since}"
    return (
        f"no step for {since}, rank {first.rank} on {first.host}{_and_more(len(behind) - 1)} is behind"
        f" (step {first.step or 0:,} of {farthest:,})"
    )


def stepping_seconds(timeline: RunTimeline, now: float) -> float:
    """Return the time since the first step of a living rank; 0 if unknown."""
    firsts = [
        (view.started_at or 0.0) + view.phases["first_step"]
        for view in timeline.ranks.values()
        if view.alive and "first_step" in view.phases
    ]
    return now - min(firsts, default=now)


def _left_behind(timeline: RunTimeline, figures: Present, now: float) -> str:
    never = [view for view in figures.idle if view.step is None and view.started_at]
    seconds = stepping_seconds(timeline, now)
    if not never or not figures.working or seconds < NEVER_STEPPED_SECONDS:
        return ""
    first = min(never, key=lambda view: view.rank)
    others = count_text(figures.working, "other makes them", "others make them")
    has = "has" if len(never) == 1 else "have"
    text = f"rank {first.rank} on {first.host}{_and_more(len(never) - 1)} {has} made no step, "
    text += f"{others} for {span_text(seconds)}"
    where = _where_called(timeline, first)
    return f"{text}: it {where}{_asked_text(timeline, first, now)}" if where else text


def _and_more(count: int) -> str:
    return f" (and {count:,} more)" if count > 0 else ""


def _slowest_start(timeline: RunTimeline, now: float) -> str:
    """Describe the activity of the ranks that are least far along."""
    living = [view for view in timeline.ranks.values() if view.alive and view.started_at]
    if not living:
        return ""
    fewest = min(len(view.phases) for view in living)
    last = [view for view in living if len(view.phases) == fewest]
    alike = _alike(timeline, last)
    last = alike or last
    first = min(last, key=lambda view: view.rank)
    seconds = min(
        now - (view.started_at or now) - max(view.phases.values(), default=0.0) for view in last
    )
    if seconds < LONG_START_SECONDS and not any(view.phases for view in living):
        return ""
    if (found := timeline.stall_of_start) is not None:
        return f" for {span_text(now - min(view.started_at or now for view in living))}: {found.summary}"
    everyone = len(last) == len(living) > 1
    who = "all" if everyone else f"rank {first.rank} on {first.host}{_and_more(len(last) - 1)}"
    does = PHASE_WORDS[first.phase][everyone]
    if place := _where_called(timeline, first) if alike else "":
        place = f"{plural(place) if everyone else place}{_asked_text(timeline, first, now)}"
    took = _others_took(first, living)
    late = took is not None and is_late(seconds, took)
    if seconds < LONG_START_SECONDS and not late:
        return f", {who} {place or does}"
    others = f", the others took {span_text(took)}" if late and took is not None else ""
    also = f" and {place}" if place else ""  # nothing says since when it is there
    return f", {who} {does} for {span_text(seconds)}{also}{others}"


def _alike(timeline: RunTimeline, views: list[RankView]) -> list[RankView]:
    """Return the fewest of ``views`` that were at one line when all of them were asked in this attempt; else none."""
    by_place: dict[object, list[RankView]] = {}
    for view in views:
        called = timeline.calls.get(view.rank)
        if called is None or called.t < (view.started_at or 0.0) or not called.call.frames:
            return []
        by_place.setdefault(own_place(called.call.frames), []).append(view)
    return min(by_place.values(), key=len)


def _where_called(timeline: RunTimeline, view: RankView) -> str:
    """Return the activity and place of a rank at its last call in this attempt: ``is in load at train.py:12``."""
    called = timeline.calls.get(view.rank)
    if called is None or called.t < (view.started_at or 0.0) or not called.call.frames:
        return ""
    roll = Roll(timeline.run, {view.rank: called.call}, {view.rank: view.host})
    cause = cause_of(view.rank, roll)
    return ", ".join((cause.does, *cause.details))


def _asked_text(timeline: RunTimeline, view: RankView, now: float) -> str:
    ago = now - timeline.calls[view.rank].t
    return f" (asked {span_text(ago)} ago)" if ago > CALL_IS_OLD_SECONDS else ""


def _others_took(first: RankView, living: list[RankView]) -> float | None:
    """Return how long most others took for the part of the start that ``first`` is in; None if few have it behind them."""
    if first.phase is None:
        began = first.started_at or 0.0
        whole = [
            max(view.phases.values()) + max(0.0, (view.started_at or 0.0) - began)
            for view in living
            if view.phases
        ]
        return median(whole) if len(whole) >= len(living) / 2 else None
    place = PHASE_ORDER.index(first.phase) + 1
    done = PHASE_ORDER[place] if place < len(PHASE_ORDER) else ""
    times = [phase_seconds(view.phases, done) for view in living if done in view.phases]
    return median(times) if len(times) >= len(living) / 2 else None


def _end_line(end: RunEnded) -> str:
    if end.error is not UNSET:
        return f"not started: {end.error}"
    line = f"{end.state} after {duration_text(end.seconds)}, exit code {end.exit_code}"
    if end.restarts:
        line += f", {count_text(end.restarts, 'restart')}"
    first = end.first_failure
    if first is not UNSET and first:
        line += f"; {first.blame}"
    return line


def hang_text(timeline: RunTimeline) -> str:
    """Return the place of the hang of a stopped run, to follow its end; empty if its ranks made steps to the end."""
    found, end = timeline.stall, timeline.end
    if found is None or end is None or end.state is not EndState.STOPPED:
        return ""
    since = max((view.stepped_at or 0.0 for view in timeline.ranks.values()), default=0.0)
    hung = found.severity is not Severity.INFO and found.t > since
    return f"; it hung: {found.summary}" if hung else ""


def trend_of(series: Series) -> str:
    """Return an arrow for the last points of a curve against as many before; level if noise explains the difference.

    Two means of n values differ by noise alone by more than three of their standard errors, ``sd * sqrt(2 / n)``,
    once in 400 times.
    """
    count = min(TREND_POINTS, len(series) // 3)
    if count < 2:
        return ""
    recent, before = series.values[-count:], series.values[-2 * count : -count]
    change = fmean(recent) - fmean(before)
    noise = sqrt((pvariance(recent) + pvariance(before)) / count)
    if abs(change) <= max(3 * noise, 0.005 * abs(fmean(before))):
        return "→"
    return "↓" if change < 0 else "↑"
