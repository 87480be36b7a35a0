"""The curves of a run: which there are, what each is now in words, and where its axis ends."""

from __future__ import annotations

from operator import itemgetter

from distconsole.formats.figures import number_text
from distconsole.model.time_text import is_time
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Present, age_text, present
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.plot import LABEL, Curve, PlotData, Plots, figure

STEP, SECONDS = "step", "seconds"


def plots_of(task: RequestTask, now: float, plots: Plots) -> list[PlotData]:
    """Return what ``plots`` show at ``now`` (UNIX seconds): loss, throughput, step time and GPU use come first."""
    timeline = task.run
    metrics = [(name, timeline.metrics[name], STEP) for name in sorted(timeline.metrics)]
    wanted: list[tuple[str, Series, str]] = [
        *(each for each in metrics if each[0] == "loss"),
        ("samples/s", timeline.throughput, SECONDS),
        *(each for each in metrics if "acc" in each[0]),
        ("step ms", timeline.step_ms.series, SECONDS),
        ("GPU %", timeline.gpu_use.series, SECONDS),
        *(each for each in metrics if each[0] != "loss" and "acc" not in each[0]),
    ]
    known = [each for each in wanted if len(each[1]) or each[1].broken]
    figures = present(timeline, now)
    return [_plot(timeline, each, figures, now) for each in plots.pick(known, itemgetter(0))]


def _plot(
    timeline: RunTimeline, shown: tuple[str, Series, str], figures: Present, now: float
) -> PlotData:
    title, series, x = shown
    start, end = timeline.started or 0.0, timeline.end
    if x == STEP:
        said = _metric_text(timeline, title, figures, now)
        return PlotData(title, (_copy(series, 0.0),), ((f" {said}", LABEL),), x)
    if end is None:
        said = _now_text(title, timeline, figures, now)
    else:
        said = "" if series.last is None else f"last {figure(series.last)}"
    until = (now if end is None else end.t) - start
    words = ((f" {said}", LABEL),) if said else ()
    axis_end = until if is_time(until) else None
    return PlotData(title, (_copy(series, start),), words, x, axis_end)


def _metric_text(timeline: RunTimeline, name: str, figures: Present, now: float) -> str:
    newest = timeline.metric_last[name]
    if timeline.end is not None:
        return f"last {newest.value:.3g}"
    return f"{newest.value:.3g}{age_text(newest.t, now, figures.step_ms)}"


def _now_text(title: str, timeline: RunTimeline, figures: Present, now: float) -> str:
    """What is measured now; the line about the run has the same figures."""
    match title:
        case "samples/s":
            return figures.rate_text.replace(" samples/s", "")
        case "step ms":
            return number_text(figures.step_ms) or "–"
        case _:
            views = timeline.ranks.values()
            used = [view.gpu_util for view in views if is_fresh(view.gpu_at, now)]
            known = [util for util in used if util is not None]
            return figure(sum(known) / len(known)) if known else "–"


def _copy(series: Series, start: float) -> Curve:
    """Return a copy of ``series``, counted from ``start``, that stays as it is while the run goes on."""
    xs, broken = (
        tuple(max(0.0, x - start) for x in points) if start else tuple(points)
        for points in (series.xs, series.broken)
    )
    gaps = tuple((begin - start, end - start) for begin, end in series.gaps)
    return Curve(xs, tuple(series.values), tuple(series.lows), tuple(series.highs), broken, gaps)
