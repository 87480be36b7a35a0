"""Points of a curve on the columns of dots that a plot has room for."""

import random

import pytest

from distconsole.tui.widgets.curves import Curve, columns_of, mean_of, smoothed, value_scale


def one_by_one(curve: Curve, scale: float) -> list[tuple[int, list[float], float, float]]:
    """Return column, values, lowest and highest, each point looked at by itself."""
    found: dict[int, list[int]] = {}
    for at, x in enumerate(curve.xs):
        found.setdefault(int((x - curve.xs[0]) * scale), []).append(at)
    return [
        (
            column,
            [curve.values[at] for at in places],
            min(curve.lows[at] for at in places),
            max(curve.highs[at] for at in places),
        )
        for column, places in found.items()
    ]


@pytest.mark.parametrize("points", [1, 2, 40, 400, 3000])
def test_every_point_is_in_its_column(points: int) -> None:
    chance = random.Random(points)
    xs = sorted(chance.uniform(0, 1000) for _ in range(points))
    values = [chance.gauss(1, 0.2) for _ in xs]
    lows = [value - chance.random() for value in values]
    curve = Curve(xs, values, lows, [value + chance.random() for value in values])
    scale = 43 / (xs[-1] - xs[0]) if points > 1 else 0.0
    drawn = {column: rest for column, *rest in columns_of(curve, scale, xs[0])}
    for column, of_column, low, high in one_by_one(curve, scale):
        assert drawn[column] == [pytest.approx(sum(of_column) / len(of_column)), low, high]


def test_a_sum_beyond_what_a_float_can_be_has_a_mean() -> None:
    assert mean_of([1.5e308, 1.5e308, 0.0]) == pytest.approx(1e308)


def drawn(curve: Curve, columns: int) -> set[int]:
    """Return the columns of dots on which something is drawn."""
    scale = (columns - 1) / (curve.xs[-1] - curve.xs[0])
    return {column for column, *_ in columns_of(curve, scale, curve.xs[0])}


def test_no_line_leads_across_a_time_in_which_nothing_was_measured() -> None:
    xs = [*range(10), *range(30, 40)]
    values = [1900.0] * 10 + [60.0] * 10
    assert drawn(Curve(xs, values, values, values), 80) == set(range(80))
    for missing in ({"broken": [19.0]}, {"gaps": [(9.0, 30.0)]}):
        assert drawn(Curve(xs, values, values, values, **missing), 80) == {
            *range(19),
            *range(60, 80),
        }


@pytest.mark.parametrize("rows", [3, 4, 8])
@pytest.mark.parametrize("high", [1e-9, 0.7, 58.4, 961.0, 876_547.0, 3e11])
def test_an_axis_has_round_ticks_on_whole_rows_and_little_room_to_spare(
    high: float, rows: int
) -> None:
    scale = value_scale(0.9 * high, high, rows, zero=True)
    step = scale.a_row * scale.tick_rows
    assert f"{step:.3e}"[0] in "125"
    assert f"{step:.3e}"[1:5] == ".000"
    assert scale.foot == 0
    assert rows * 0.6 - 1 < scale.rows_up(high) <= rows + 0.5


def test_only_what_is_no_rate_begins_above_0_and_only_where_its_change_is_small() -> None:
    assert value_scale(95.0, 100.0, 8, zero=True).foot == 0
    assert all(value_scale(0, 100.0, n, zero=True).a_row * n <= 120 for n in range(11, 26)), (
        "of percents"
    )
    assert value_scale(80.0, 100.0, 8, zero=False).foot >= 70
    assert value_scale(95.0, 100.0, 8, zero=False).foot == 0
    assert value_scale(70.5, 70.5, 8, zero=False).foot == 0
    assert value_scale(0.2, 2.3, 8, zero=False).foot == 0
    assert value_scale(-3.0, 5.0, 8, zero=True).foot <= -3
    assert 0.01 < value_scale(0.0, 0.0, 8, zero=True).a_row <= 1, "of zeros alone"


def test_a_smoothed_line_comes_to_what_it_nears() -> None:
    line = smoothed([100.0, *[0.0] * 400], 100)
    assert line[1] > 0
    assert line[-1] == 0
