"""Curves of bounded length: where nothing was measured, and which range nearly all of one lies in."""

from __future__ import annotations

from distconsole.runs.series import MAX_GAPS, Band, Series, usual_range


def test_a_time_without_values_is_a_gap() -> None:
    band = Band()
    for second in (*range(10), *range(30, 40)):
        band.put(100.0 + second, 5.0)
    assert band.series.gaps == [(109.0, 130.0)]


def test_slow_steps_that_are_told_seldom_leave_no_gap() -> None:
    band = Band(of_steps=True)
    for second in range(0, 300, 30):
        band.put(float(second), 30_000.0)
    band.flush()
    assert band.series.gaps == []


def test_a_pause_that_became_one_long_step_is_a_gap_all_the_same() -> None:
    band = Band(of_steps=True)
    for second in range(10):
        band.put(float(second), 50.0)
    band.put(30.0, 20_000.0)
    band.flush()
    assert band.series.gaps == [(9.0, 30.0)]


def test_gaps_stay_when_neighbours_are_merged_and_are_bounded() -> None:
    series = Series(limit=8)
    for x in range(1000):
        if x % 4 == 0:
            series.interrupt(float(x))
        series.put(float(x), 1.0)
    series.interrupt(5000.0)
    series.put(5000.0, 1.0)
    assert len(series.gaps) <= MAX_GAPS
    assert series.gaps[-1] == (series.gaps[-1][0], 5000.0)
    assert series.gaps[-1][0] >= 990.0
    assert series.xs[-1] == 5000.0


def test_what_begins_again_has_no_gap_from_before() -> None:
    series = Series()
    series.put(1.0, 1.0)
    series.interrupt(30.0)
    series.put(30.0, 1.0)
    series.cut(10.0)
    assert series.gaps == []


def test_one_long_window_does_not_make_all_others_alike() -> None:
    values = [20.0 + place % 3 for place in range(100)]
    values[50] = values[51] = 9000.0
    low, high = usual_range(values, values)
    assert low == 20.0
    assert 22.0 <= high < 30.0


def test_what_goes_on_is_no_outlier() -> None:
    values = [20.0] * 400 + [60.0] * 3
    assert usual_range(values, values) == (20.0, 60.0)
    few = [20.0] * 5 + [9000.0]
    assert usual_range(few, few) == (20.0, 9000.0)


def test_values_near_each_other_are_all_shown() -> None:
    values = [float(place) for place in range(100)]
    assert usual_range(values, values) == (0.0, 99.0)
