"""The curves of a run: which there are, what each is now in words, and where its axis ends."""

from __future__ import annotations

from operator import itemgetter

from distconsole.model.time_text import is_time
from distconsole.runs.figures import more_is_better
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Present, age_text, loss_name_of, reading_text
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.plots import Plots

STEP, SECONDS = "step", ""


def plots_of(task: RequestTask, now: float, figures: Present, plots: Plots) -> list[PlotData]:
    """Return what ``plots`` show at ``now`` (UNIX seconds): loss, throughput, step time and GPU use come first."""
    timeline = task.run
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
    """Return a curve and its figures of now.

    Args:
        drawn: What is drawn of it already, and the x that a column of dots stands for: the curve stays as
            it is until that column is full.
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
    """What is measured now; the tiles have the same figures."""
    match title:
        case "samples/s":
            return figures.rate_text.replace(" samples/s", ""), ""
        case "step time":
            return figures.step_text, ""
        case _:
            views = timeline.ranks.values()
            used = [view.gpu_util for view in views if is_fresh(view.gpu_at, now)]
            known = [util for util in used if util is not None]
            return reading_text(sum(known) / len(known)) if known else "–", ""


def _copy(series: Series, start: float) -> Curve:
    """Return a copy of ``series``, counted from ``start``, that stays as it is while the run goes on."""
    xs, broken = (
        tuple(max(0.0, x - start) for x in points) if start else tuple(points)
        for points in (series.xs, series.broken)
    )
    gaps = tuple((begin - start, end - start) for begin, end in series.gaps)
    return Curve(xs, tuple(series.values), tuple(series.lows), tuple(series.highs), broken, gaps)
