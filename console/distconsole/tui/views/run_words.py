"""Words about a run: its verdict, description, tiles, curves, findings, and failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import PurePosixPath
from statistics import fmean, median
from textwrap import wrap

from msgspec import UNSET
from rich.text import Text

from distconsole.formats.figures import number_text
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import EndState, RunFinding
from distconsole.model.time_text import duration_text, is_time, ms_text, span_text
from distconsole.runs.figures import more_is_better
from distconsole.runs.health import Tone, health_of, seconds_left, trend_of
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import (
    Present,
    age_text,
    done_text,
    loss_name_of,
    meeting_ms,
    reading_text,
    unit_of,
)
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.view_models.hints import console_hint
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.plots import Plots
from distconsole.tui.widgets.tiles import SPARK_CELLS, TileData

MARKS = {
    Tone.GOOD: ("●", "✓", "good"),
    Tone.NOTE: ("…", "…", "note"),
    Tone.WARN: ("▲", "■", "warn"),
    Tone.BAD: ("✗", "✗", "bad"),
}
"""Tone -> the mark of a running and of an ended run, and their style."""


def verdict_of(task: RequestTask, now: float, figures: Present) -> tuple[str, str, str, str]:
    """Return tone, mark, sentence and subject of the run of ``task`` at ``now`` (UNIX seconds)."""
    timeline = task.run
    if task.error is not None and timeline.end is None:
        hint = f"hint: {console_hint(task.error.hint)}" if task.error.hint else ""
        return "bad", "✗", task.error.message, hint
    if timeline.plan is None and not timeline.ranks:
        nothing = ("nothing ran", "") if task.done else ("preparing", "…")
        return "note", nothing[1], nothing[0], ""
    health = health_of(timeline, now, figures)
    going, ended, tone = MARKS[health.tone]
    ranks = count_text(timeline.world, "rank")
    late = task.late_seconds
    word = f"{health.word.upper()}, {span_text(late)} ago" if late else health.word.upper()
    sentence = f"{word}  {health.sentence or ranks}"
    if timeline.restart is not None and timeline.end is None:
        sentence += f", restart {timeline.restart.restart} of {timeline.restart.of}"
    if late or task.reads_past:
        tone = "note" if tone == "good" else tone
        sentence += ", more is still to be read"
    mark = going if timeline.end is None else ended
    return tone, mark, sentence, about_text(timeline, now, figures)


def about_text(timeline: RunTimeline, now: float, figures: Present) -> str:
    """Name, age, the ranks' states, hosts; the least needed last."""
    plan = timeline.plan
    if plan is None:
        return ""
    parts = [timeline.name, _lasted(timeline, now)]
    if len(figures.states) > 1:
        states = figures.states.most_common()
        parts.append(", ".join(f"{count} {state.value}" for state, count in states))
    hosts = [host.host for host in plan.hosts]
    parts.append(", ".join(hosts) if len(hosts) <= 3 else f"{len(hosts)} hosts")
    return "  ".join([*parts, plan.launcher, PurePosixPath(plan.script).name])


def _lasted(timeline: RunTimeline, now: float) -> str:
    end, started = timeline.end, timeline.started or now
    return duration_text(max(0.0, now - started) if end is None else end.seconds)


HINT, LEAST_HINT = "  hint: ", 20

SAID_AS = {
    "run.straggler": "is slow",
    "run.stall": "step",
    "run.node_lost": "no connection",
    "run.first_failure": "failed",
}
"""Check -> the part of a verdict that reports the same of the same rank or host."""


def news_of(
    timeline: RunTimeline,
    now: float,
    said: str,
    cells: int,
    hint: Callable[[str], str] = console_hint,
) -> Text:
    """News in lines of ``cells``: findings, the worst and newest first; after success, the results.

    A finding in the verdict has only its advice here, from ``hint``; formerly slow ranks share one line.
    """
    text = Text()
    end = timeline.end
    if end is not None and end.state is EndState.SUCCEEDED and timeline.metric_last:
        text.append("results  ", style="strong")
        text.append(_results(timeline) + "\n")
    shown = [f for f in timeline.findings if f.severity in (Severity.WARN, Severity.FAIL)]
    past = [f for f in shown if _is_past(f, timeline, now)]
    newest = [f for f in reversed(shown) if f not in past][:20]
    for finding in sorted(newest, key=lambda finding: -finding.severity.order)[:3]:
        # A finding may be over: while the run goes on, its age is shown.
        age = age_text(finding.t, now) if end is None else ""
        if not _is_said(finding, said):
            mark, style = SEVERITY_MARKS[finding.severity]
            text.append(f"{mark} ", style=style)
            text.append(finding.summary)
            text.append(f",{age}\n" if age else "\n", style="note")
        if finding.hint:
            do = wrap(
                hint(finding.hint), max(LEAST_HINT, cells - len(HINT)), break_on_hyphens=False
            )
            text.append(HINT + f"\n{' ' * len(HINT)}".join(do) + "\n", style="note")
    if past:
        more = f" (and {len(past) - 1} more)" if len(past) > 1 else ""
        age = age_text(past[-1].t, now)
        words = f"earlier: {past[-1].summary}{',' if age else ''}{age}{more}"
        text.append(words, style="faint")
    text.rstrip()
    return text


def _is_past(finding: RunFinding, timeline: RunTimeline, now: float) -> bool:
    """True if it is about a slow rank that is slow no more, or makes no steps."""
    if finding.check != "run.straggler" or finding.rank is UNSET or timeline.end is not None:
        return False
    view = timeline.ranks.get(finding.rank)
    going = view is not None and is_fresh(view.stepped_at, now, view.steady_ms)
    return not going or finding.rank not in timeline.stragglers.slow


def _is_said(finding: RunFinding, said: str) -> bool:
    whose = finding.hosts[:1] if finding.rank is UNSET else (f"rank {finding.rank} ",)
    about = SAID_AS.get(finding.check)
    same = about is not None and about in said and any(each in said for each in whose)
    return same or finding.summary in said


def _results(timeline: RunTimeline) -> str:
    names = sorted(
        timeline.metric_last, key=lambda name: (not more_is_better(name), name != "loss", name)
    )
    parts = [f"{name} {timeline.metric_last[name].value:.4g}" for name in names[:6]]
    if done := done_text(timeline):
        parts.append(done)
    highest = max(timeline.throughput.values, default=None)
    if highest is not None:
        parts.append(f"up to {number_text(highest)} samples/s")
    return "  ".join(parts)


def traceback_of(timeline: RunTimeline) -> tuple[int | None, str]:
    """Return the first failed rank and its traceback, both empty without one."""
    found = (f for f in timeline.findings if f.check == "run.first_failure" and f.seen)
    first = next(found, None)
    if first is None:
        return None, ""
    return first.rank if first.rank is not UNSET else None, first.seen.rstrip()


MINUTE = 60.0
CHANGED_SHARE = 0.1
"""Least relative difference of a rate from the run's usual one that is news."""
ENOUGH_POINTS = 10
TREND_WORDS = {"↓": "falls", "→": "level", "↑": "rises"}
OF_RUN = ("mean of the run", "faint")


def tiles_of(task: RequestTask, now: float, figures: Present) -> list[TileData]:
    """Return the tiles of the run of ``task`` at ``now`` (UNIX seconds); none while its past is read."""
    timeline = task.run
    if task.reads_past or (timeline.plan is None and not timeline.ranks):
        return []
    until = timeline.until(now)
    tiles = [_rate(timeline, figures, until), _step_time(timeline, figures, until)]
    if loss_name_of(timeline):
        tiles.append(_loss(timeline, figures, now))
    tiles.append(_steps(timeline, figures, now))
    if (waiting := _waiting(timeline, figures)) is not None:
        tiles.append(waiting)
    return tiles


def _rate(timeline: RunTimeline, figures: Present, until: float) -> TileData:
    recent = recent_of(timeline.throughput, until)
    if timeline.end is not None:
        mean = timeline.mean_samples_s
        value, more = ("–", []) if mean is None else (f"{mean:,.0f}", [OF_RUN])
        return TileData("samples/s", value, "faint", recent, more)
    value, unit, rest = figures.rate_text.partition(" samples/s")
    more = [(rest.strip(), "faint")]
    usual = median(timeline.throughput.values) if len(timeline.throughput) >= ENOUGH_POINTS else 0
    if figures.samples_s and usual and not figures.unseen:
        change = figures.samples_s / usual - 1
        if abs(change) >= CHANGED_SHARE:
            more.append((f"{change:+.0%} of usual", "warn" if change < 0 else "good"))
    style = "faint" if figures.samples_s is None else "strong"
    return TileData(unit.strip(), value, style, recent, more)


def _step_time(timeline: RunTimeline, figures: Present, until: float) -> TileData:
    recent = recent_of(timeline.step_ms.series, until)
    if timeline.end is not None and (times := timeline.step_times):
        return TileData("step time", ms_text(fmean(times)), "faint", recent, [OF_RUN])
    more = [(f"p95 {reading_text(figures.p95_ms)}" if figures.p95_ms else "", "faint")]
    style = "strong" if figures.step_ms is not None else "faint"
    return TileData("step time", figures.step_text, style, recent, more)


def _loss(timeline: RunTimeline, figures: Present, now: float) -> TileData:
    name = loss_name_of(timeline)
    newest, series = timeline.metric_last[name], timeline.metrics[name]
    over = timeline.end is not None
    age = "last" if over else age_text(newest.t, now, figures.step_ms).strip()
    trend = "" if age else TREND_WORDS.get(trend_of(series), "")
    best = min(series.values, default=None)
    more = [(age, "faint"), (trend, ""), (f"best {reading_text(best)}", "faint")]
    return TileData(name, reading_text(newest.value), "faint" if age else "strong", (), more)


def _steps(timeline: RunTimeline, figures: Present, now: float) -> TileData:
    steps = timeline.steps
    done = "–" if steps is None else f"{steps + 1:,}"
    units = "batches" if unit_of(timeline) == "batch" else "steps"
    more = [(_lasted(timeline, now), "faint")]
    left = None if timeline.end is not None else seconds_left(timeline, figures, now)
    if left is not None:
        more.insert(0, (f"{span_text(left)} left", ""))
    if figures.step_ms:
        more.append((f"{1000 / figures.step_ms:.3g} {units}/s", "faint"))
    return TileData(units, done, "strong" if steps is not None else "faint", (), more)


def _waiting(timeline: RunTimeline, figures: Present) -> TileData | None:
    """Return the share of the ranks' time spent waiting for each other; None without present figures."""
    if (
        timeline.end is not None
        or len(timeline.ranks) < 2
        or not any(meeting_ms(view) for view in timeline.ranks.values())
    ):
        return None
    whole = (figures.step_ms or 0.0) * figures.working
    if figures.waits.total_ms is None or not whole:
        return TileData("waiting", "–", "faint")
    share = figures.waits.total_ms / whole
    return TileData(
        "waiting", f"{share:.0%}".replace("%", " %"), more=[("of the ranks' time", "faint")]
    )


def recent_of(series: Series, until: float) -> Sequence[float | None]:
    """Return the means of ``series`` in the minute before ``until`` (UNIX seconds), a value a cell; None in gaps."""
    return series.means(until - MINUTE, MINUTE / SPARK_CELLS, SPARK_CELLS)


STEP, SECONDS = "step", ""


def plots_of(task: RequestTask, now: float, figures: Present, plots: Plots) -> list[PlotData]:
    """Return the curves of ``plots`` at ``now`` (UNIX seconds): loss, throughput, step time and GPU use come first."""
    timeline = task.run
    if task.reads_past:
        return []
    loss = loss_name_of(timeline)
    metrics = [(name, timeline.metrics[name], STEP) for name in sorted(timeline.metrics)]
    wanted: list[tuple[str, Series, str]] = [
        *(each for each in metrics if each[0] == loss),
        ("samples/s", timeline.throughput, SECONDS),
        ("step time", timeline.step_ms.series, SECONDS),
        *(each for each in metrics if more_is_better(each[0])),
        ("GPU %", timeline.gpu_use.series, SECONDS),
        *(each for each in metrics if each[0] != loss and not more_is_better(each[0])),
    ]
    known = [each for each in wanted if len(each[1]) or each[1].broken]
    shown = plots.pick(known, itemgetter(0))
    return [
        _plot(task, each, figures, now, plots.drawn(place, f"{task.number} {each[0]}"))
        for place, each in enumerate(shown)
    ]


def _plot(
    task: RequestTask,
    shown: tuple[str, Series, str],
    figures: Present,
    now: float,
    drawn: tuple[PlotData, float] | None,
) -> PlotData:
    """Return a curve with its present figures.

    ``drawn`` is the drawn plot, with the x width of a column of dots: the curve stays until a column is full.
    """
    timeline = task.run
    title, series, x = shown
    end, metric = timeline.end, x == STEP
    start = 0.0 if metric else timeline.started or 0.0
    if metric:
        said, style = _metric_text(timeline, title, figures, now)
    elif end is None:
        said, style = _now_text(title, timeline, figures, now)
    else:
        said, style = ("" if series.last is None else f"last {reading_text(series.last)}"), "faint"
    until = None if metric else timeline.until(now) - start
    until = until if until is not None and is_time(until) else None
    curves: tuple[Curve, ...] = ()
    if drawn is not None and end is None:
        before, x_dot = drawn
        last = max(series.last_x or start, *series.broken[-1:], start) - start
        if last - before.newest < x_dot and abs((until or 0.0) - (before.until or 0.0)) < x_dot:
            curves, until = before.curves, before.until
    return PlotData(
        title,
        curves or (_copy(series, start),),
        ((said, style),) if said else (),
        x,
        until,
        zero=not metric,
        smooth=metric,
        legend="" if metric else "run time",
        key=f"{task.number} {title}",
    )


def _metric_text(
    timeline: RunTimeline, name: str, figures: Present, now: float
) -> tuple[str, str]:
    newest = timeline.metric_last[name]
    if timeline.end is not None:
        return f"last {reading_text(newest.value)}", "faint"
    age = age_text(newest.t, now, figures.step_ms)
    return f"{reading_text(newest.value)}{age}", "faint" if age else ""


def _now_text(title: str, timeline: RunTimeline, figures: Present, now: float) -> tuple[str, str]:
    """The present measurement, as in the tiles."""
    match title:
        case "samples/s":
            return figures.rate_text.replace(" samples/s", ""), ""
        case "step time":
            return figures.step_text, ""
        case _:
            views = timeline.ranks.values()
            used = [
                view.gpu_util for view in views if view.sample and is_fresh(view.sample.t, now)
            ]
            known = [util for util in used if util is not None]
            return reading_text(sum(known) / len(known)) if known else "–", ""


def _copy(series: Series, start: float) -> Curve:
    """Return a copy of ``series``, counted from ``start``: the run's own goes on changing."""
    xs, broken = (
        tuple(max(0.0, x - start) for x in points) if start else tuple(points)
        for points in (series.xs, series.broken)
    )
    gaps = tuple((begin - start, end - start) for begin, end in series.gaps)
    return Curve(xs, tuple(series.values), tuple(series.lows), tuple(series.highs), broken, gaps)
