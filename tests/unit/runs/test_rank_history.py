"""What ranks did over time: bounded, the worst of a moment kept, hostile figures taken."""

import math
from typing import Any

from distconsole.model.run_events import GpuSample, Window
from distconsole.runs.rank_history import (
    BROKEN,
    CELLS,
    MAX_METRICS,
    RECENT_COLUMNS,
    UNKNOWN,
    WHOLE_COLUMNS,
    RankHistory,
)
from distconsole.runs.series import MAX_BROKEN, Series
from fakes import run_events
from fakes.blank import blank
from fakes.run_events import T, timeline_of


def window(rank: int, t: float, ms: float | None = 10.0, **fields: Any) -> Window:
    step = int(t - T) if math.isfinite(t) and abs(t) < 1e15 else 0
    usual = {"step": step, "steps": 1, "samples_s": None, "host": "h"}
    return run_events.window(rank, t, ms, **{**usual, **fields})


def folded(*events: Any) -> RankHistory:
    history = RankHistory()
    for event in events:
        history.apply(event)
    return history


def test_the_last_minutes_are_kept_by_the_second_and_the_whole_run_by_longer_moments() -> None:
    history = folded(*(window(0, T + second, float(second)) for second in range(1000)))
    recent, whole = history.recent, history.whole
    assert RECENT_COLUMNS <= recent.columns <= RECENT_COLUMNS * 5 // 4
    assert recent.row("step", 0)[-1] == 999.0
    assert recent.first + recent.columns == 1000
    assert whole.seconds == 8.0
    assert whole.columns == 125 <= WHOLE_COLUMNS
    assert list(whole.row("step", 0))[:2] == [7.0, 15.0]
    assert list(whole.steps)[:2] == [7, 15]


def test_a_spike_is_never_averaged_away() -> None:
    history = folded(
        *(window(0, T + second, 500.0 if second == 3 else 10.0) for second in range(2000))
    )
    assert max(history.whole.row("step", 0)) == 500.0


def test_where_little_is_bad_the_least_is_kept() -> None:
    history = folded(
        window(0, T, samples_s=400.0), window(0, T + 0.5, samples_s=90.0), window(0, T + 0.9)
    )
    rate = history.quantities["rate"]
    assert rate.value(history.recent.row("rate", 0)[0]) == 90.0


def test_of_a_metric_that_compare_wants_high_the_least_is_kept() -> None:
    said = (
        {"loss": 1.0, "val_f1": 0.75},
        {"loss": 3.0, "val_f1": 0.25},
        {"loss": 2.0, "val_f1": 0.5},
    )
    history = folded(*(window(0, T + at / 10, metrics=each) for at, each in enumerate(said)))
    kept = {
        name: quantity.value(history.recent.row(name, 0)[0])
        for name, quantity in history.quantities.items()
        if name.startswith("metric")
    }
    assert kept == {"metric loss": 3.0, "metric val_f1": 0.25}


def test_a_moment_without_a_window_has_that_which_covers_it() -> None:
    drifting = folded(window(0, T), window(0, T + 0.98, 20.0), window(0, T + 2.01, 30.0))
    assert list(drifting.recent.row("step", 0)) == [20.0, 30.0, 30.0]
    long_steps = folded(window(0, T), window(0, T + 4.5, 3400.0), window(0, T + 6.2, 1700.0))
    assert list(long_steps.recent.row("step", 0)) == [10.0, *[3400.0] * 4, 1700.0, 1700.0]
    paused = folded(window(0, T), window(0, T + 4))
    assert list(paused.recent.row("step", 0)) == [10.0, UNKNOWN, UNKNOWN, 10.0, 10.0]


def test_a_moment_without_a_window_is_unknown() -> None:
    history = folded(window(0, T), window(1, T + 3))
    assert list(history.recent.row("step", 0)) == [10.0, UNKNOWN, UNKNOWN, UNKNOWN]
    assert list(history.recent.row("step", 7)) == [UNKNOWN] * 4


def test_cells_are_bounded_whatever_the_ranks() -> None:
    history = RankHistory()
    for second in range(0, 4000, 20):
        for rank in range(300):
            history.apply(window(rank, T + second))
    for track in (history.recent, history.whole):
        for grid in track.grids.values():
            assert sum(map(len, grid.columns)) <= CELLS
            assert len(grid.columns) <= WHOLE_COLUMNS


def test_metrics_are_bounded_and_do_not_take_the_names_of_what_is_measured() -> None:
    metrics = {f"m{number}": 1.0 for number in range(20)} | {"step": 3.0}
    history = folded(window(0, T, metrics={"step": 3.0}), window(0, T, metrics=metrics))
    assert len(history.quantities) == 1 + MAX_METRICS
    assert list(history.recent.row("metric step", 0)) == [3.0]
    assert list(history.recent.row("step", 0)) == [10.0]


def test_figures_that_are_no_numbers_are_worst_and_break_nothing() -> None:
    for value in (math.nan, math.inf, -math.inf):
        history = folded(window(0, T, metrics={"loss": value}))
        assert history.recent.row("metric loss", 0)[0] == BROKEN
    history = folded(window(0, T, metrics={"loss": 1e300}))
    assert history.recent.row("metric loss", 0)[0] > 1e38


def test_times_that_cannot_be_are_left_out_or_bounded() -> None:
    history = folded(window(0, T), window(0, math.nan), window(0, math.inf), window(0, -1e12))
    assert history.recent.columns == 1
    history.apply(window(0, 1e15))
    assert history.whole.columns <= WHOLE_COLUMNS
    assert history.recent.columns <= RECENT_COLUMNS
    history.apply(window(0, 1e15 + 1, 20.0))
    assert history.recent.row("step", 0)[-1] == 20.0


def test_a_gpus_use_is_that_of_its_rank() -> None:
    sample = blank(GpuSample, t=T, run="r", host="h", util=30.0, rank=4)
    history = folded(window(4, T), sample)
    assert history.quantities["use"].value(history.recent.row("use", 4)[0]) == 30.0


def test_step_time_is_a_curve_with_the_band_of_the_ranks() -> None:
    events = [window(rank, T + second, 10.0 + rank) for second in range(3) for rank in range(3)]
    timeline = timeline_of(events)
    series = timeline.step_ms.series
    assert series.points() == [(T, 11.0, 10.0, 12.0), (T + 1, 11.0, 10.0, 12.0)]


def test_places_of_values_that_are_no_numbers_are_kept_in_bounds() -> None:
    series = Series()
    for x in range(1000):
        series.put(x, math.nan if x % 2 else 1.0)
    assert len(series) == 500
    assert 0 < len(series.broken) <= MAX_BROKEN
    assert series.broken[-1] == 999
    series.cut(900)
    assert series.broken[-1] < 900
    series.put(math.nan, math.nan)
    assert all(map(math.isfinite, series.broken))
