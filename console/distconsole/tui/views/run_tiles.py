"""The tiles of a run: its five figures of now, as the line about the run has them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from distconsole.model.time_text import duration_text, span_text
from distconsole.runs.health import seconds_left, trend_of
from distconsole.runs.present import (
    Present,
    age_text,
    loss_name_of,
    reading_text,
    unit_of,
)
from distconsole.runs.series import Series
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.views.ranks import waits_of
from distconsole.tui.widgets.tiles import SPARK_CELLS, TileData

MINUTE = 60.0
CHANGED_SHARE = 0.1
"""A rate that differs by less from what is usual in its run is no news."""
ENOUGH_POINTS = 10


def tiles_of(timeline: RunTimeline, now: float, figures: Present) -> list[TileData]:
    """Return the tiles of ``timeline`` at ``now`` (UNIX seconds)."""
    if timeline.plan is None and not timeline.ranks:
        return []
    until = timeline.until(now)
    tiles = [_rate(timeline, figures, until), _step_time(timeline, figures, until)]
    if loss_name_of(timeline):
        tiles.append(_loss(timeline, figures, now))
    tiles.append(_steps(timeline, figures, now, until))
    if (waiting := _waiting(timeline, figures)) is not None:
        tiles.append(waiting)
    return tiles


def _rate(timeline: RunTimeline, figures: Present, until: float) -> TileData:
    value, unit, rest = figures.rate_text.partition(" samples/s")
    more = [(rest.strip(), "faint")]
    usual = median(timeline.throughput.values) if len(timeline.throughput) >= ENOUGH_POINTS else 0
    if timeline.end is not None and (mean := timeline.mean_samples_s) is not None:
        more.append((f"mean {mean:,.0f}", "faint"))
    elif figures.samples_s and usual and not figures.unseen:
        change = figures.samples_s / usual - 1
        if abs(change) >= CHANGED_SHARE:
            more.append((f"{change:+.0%} of usual", "warn" if change < 0 else "good"))
    now_known = figures.samples_s is not None and timeline.end is None
    style = "strong" if now_known else "faint"
    return TileData(unit.strip(), value, style, recent_of(timeline.throughput, until), more)


def _step_time(timeline: RunTimeline, figures: Present, until: float) -> TileData:
    p95 = max((view.step_ms_p95 or 0.0 for view in figures.at_work), default=0.0)
    more = [(f"p95 {reading_text(p95)}" if p95 else "", "faint")]
    style = "strong" if figures.step_ms is not None else "faint"
    recent = recent_of(timeline.step_ms.series, until)
    return TileData("step time", figures.step_text, style, recent, more)


def _loss(timeline: RunTimeline, figures: Present, now: float) -> TileData:
    name = loss_name_of(timeline)
    newest, series = timeline.metric_last[name], timeline.metrics[name]
    over = timeline.end is not None
    age = "last" if over else age_text(newest.t, now, figures.step_ms).strip()
    trend = "" if age else trend_of(series)
    best = min(series.values, default=None)
    more = [(age, "faint"), (trend, ""), (f"best {reading_text(best)}", "faint")]
    return TileData(name, reading_text(newest.value), "faint" if age else "strong", (), more)


def _steps(timeline: RunTimeline, figures: Present, now: float, until: float) -> TileData:
    steps = timeline.steps
    done = "–" if steps is None else f"{steps + 1:,}"
    units = "batches" if unit_of(timeline) == "batch" else "steps"
    more = [(duration_text(max(0.0, until - (timeline.started or until))), "faint")]
    left = None if timeline.end is not None else seconds_left(timeline, figures, now)
    if left is not None:
        more.insert(0, (f"{span_text(left)} left", ""))
    if figures.step_ms:
        more.append((f"{1000 / figures.step_ms:.3g} {units}/s", "faint"))
    return TileData(units, done, "strong" if steps is not None else "faint", (), more)


def _waiting(timeline: RunTimeline, figures: Present) -> TileData | None:
    """Return how much of the ranks' time is spent in waiting for each other; None where that is not measured."""
    if len(timeline.ranks) < 2 or not any(view.backward_ms for view in timeline.ranks.values()):
        return None
    waits = waits_of(figures.at_work)
    whole = sum(view.step_ms_mean or 0.0 for view in figures.at_work)
    if not waits or not whole:
        return TileData("waiting", "–", "faint")
    share = sum(waits.values()) / whole
    return TileData("waiting", f"{share:.0%}".replace("%", " %"), more=[("of rank time", "faint")])


def recent_of(series: Series, until: float) -> Sequence[float | None]:
    """Return the means of ``series`` in the minute before ``until`` (UNIX seconds), a value a cell; None where there is none."""
    return series.means(until - MINUTE, MINUTE / SPARK_CELLS, SPARK_CELLS)
