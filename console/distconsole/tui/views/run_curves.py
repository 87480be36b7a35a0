"""The curves of a run: which there are, what each is now in words, and where its axis ends. It draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distconsole.model.time_text import is_time
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Present, age_text, present
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.text.tables import number_text
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.plot import Curve, figure


class ShownCurve(NamedTuple):
    """A curve with its title, what it is now in words, what x counts, and where the axis ends."""

    title: str
    curve: Curve
    said: str
    x_label: str
    until: float | None = None


def curves_of(
    task: RequestTask, now: float, room: int, chosen: Sequence[str], skip: int
) -> list[ShownCurve]:
    """At most ``room`` curves of ``task`` at ``now`` (UNIX seconds).

    Loss, throughput, step time and GPU utilisation come first, then the other metrics; those that
    were ``chosen`` before all. The first ``skip`` are left out, and come again after the last.
    """
    timeline = task.run
    wanted: list[tuple[str, Series | None, str]] = [
        ("loss", timeline.metrics.get("loss"), "step"),
        ("samples/s", timeline.throughput, "seconds"),
        ("step ms", timeline.step_ms.series, "seconds"),
        ("GPU %", timeline.gpu_use.series, "seconds"),
    ]
    others = sorted(timeline.metrics, key=lambda name: ("acc" not in name, name))
    metrics = [(name, timeline.metrics[name], "step") for name in others if name != "loss"]
    wanted = [*wanted[:2], *(each for each in metrics if "acc" in each[0]), *wanted[2:]] + [
        each for each in metrics if "acc" not in each[0]
    ]
    known = [
        (title, series, x)
        for title, series, x in wanted
        if series is not None and (len(series) or series.broken)
    ]
    known.sort(key=lambda each: not any(each[0].startswith(word) for word in chosen))
    if len(known) > room:
        skip %= len(known)
        known = [*known[skip:], *known[:skip]]
    start, end = timeline.started or 0.0, timeline.end
    until = (now if end is None else end.t) - start
    figures = present(timeline, now)
    return [
        ShownCurve(title, _as_curve(series, 0.0), _metric_said(timeline, title, figures, now), x)
        if x == "step"
        else ShownCurve(
            title,
            _as_curve(series, start),
            _last_said(series) if end is not None else _now_said(title, timeline, figures, now),
            x,
            until if is_time(until) else None,
        )
        for title, series, x in known[:room]
    ]


def _metric_said(timeline: RunTimeline, name: str, figures: Present, now: float) -> str:
    """The newest value of a metric, as the line about the run says it."""
    newest = timeline.metric_last[name]
    if timeline.end is not None:
        return f"last {newest.value:.3g}"
    return f"{newest.value:.3g}{age_text(newest.t, now, figures.step_ms)}"


def _now_said(title: str, timeline: RunTimeline, figures: Present, now: float) -> str:
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


def _last_said(series: Series) -> str:
    return "" if series.last is None else f"last {figure(series.last)}"


def _as_curve(series: Series, start: float) -> Curve:
    """Return a copy of ``series``, counted from ``start``, that stays as it is while the run goes on."""
    xs, broken = (
        tuple(max(0.0, x - start) for x in points) if start else tuple(points)
        for points in (series.xs, series.broken)
    )
    gaps = tuple((begin - start, end - start) for begin, end in series.gaps)
    return Curve(xs, tuple(series.values), tuple(series.lows), tuple(series.highs), broken, gaps)
