"""Data of a plot: curves, the axis of values, and points on columns of dots."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

ROWS_A_TICK, TALL, TALL_ROWS_A_TICK = (2, 3, 4), 10, range(2, 9)
SMALL_SHARE = 0.1
SMOOTH_SHARE = 25
"""The line is an exponential mean over this part of the columns of dots."""
GONE_SHARE = 1e-6
"""A remaining change below this part of the highest value counts as none."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one curve: rising x, the value, and the lowest and highest rank at each.

    ``broken`` are the x of values that were no numbers; no line leads across ``gaps``, which have no measurement.
    The ``letter`` stands at its end; the ``style`` is its meaning. A ``dashed`` one leaves others visible behind it.
    """

    xs: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    broken: Sequence[float] = ()
    gaps: Sequence[tuple[float, float]] = ()
    letter: str = ""
    style: str = "curve"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class PlotData:
    """A plot, with its present figures in words and their styles.

    Attributes:
        title: The measured quantity.
        x_label: The unit of x; empty for seconds since the start.
        until: End of the axis; None for the newest point.
        since: Begin of the axis, which then counts back from its end; None for the oldest point.
        reach: A value that the axis of values reaches at least.
        zero: The axis of values begins at 0, as for rates and times.
        smooth: The line is the mean over neighbours, with the band behind it.
        legend: Meaning of the line and the band.
        key: Differs from plots with the same title, such as those of another run.
        marks: Places of errors on the axis of x.
    """

    title: str
    curves: tuple[Curve, ...]
    said: tuple[tuple[str, str], ...] = ()
    x_label: str = ""
    until: float | None = None
    since: float | None = None
    reach: float | None = None
    zero: bool = False
    smooth: bool = False
    legend: str = ""
    key: str = ""
    marks: Sequence[float] = ()

    @property
    def newest(self) -> float:
        return max(
            [each[-1] for c in self.curves for each in (c.xs, c.broken) if each], default=0.0
        )


class Scale(NamedTuple):
    """An axis of values: the value at its foot, the value of a row, and the rows between two ticks."""

    foot: float
    a_row: float
    tick_rows: int

    def rows_up(self, value: float) -> float:
        return (value - self.foot) / self.a_row


def value_scale(low: float, high: float, rows: int, *, zero: bool) -> Scale:
    """Return the finest axis with round ticks on whole rows whose ``rows`` reach ``high``.

    It begins at 0 if asked, if that costs little room, or if the change is so small that it would look large.
    """
    zero = low >= 0 and (zero or not SMALL_SHARE * high < high - low < 0.5 * high)
    foot = 0.0 if zero else low
    span = max(high - foot, 1e-9 * max(abs(high), abs(foot))) or 1.0  # of zeros alone
    power = 10.0 ** math.floor(math.log10(span / rows))
    steps = [factor * 10.0**up * power for up in (0, 1, 2) for factor in (1, 2, 5)]
    ticks = ROWS_A_TICK if rows <= TALL else TALL_ROWS_A_TICK
    able = sorted((step / each, step, each) for step in steps for each in ticks)
    for a_row, step, each in able:
        begin = 0.0 if zero else math.floor(low / step) * step
        if begin + a_row * (rows + 0.4) >= high:
            return Scale(begin, a_row, each)
    return Scale(foot, span / rows, rows)


def smoothed(values: Sequence[float], columns: int) -> list[float]:
    """Return the exponential mean of ``values`` for a plot of ``columns``; unchanged if that is 0."""
    weight = min(1.0, 2 / (1 + columns / SMOOTH_SHARE)) if columns else 1.0
    found: list[float] = []
    nothing = GONE_SHARE * max(map(abs, values), default=0.0)
    for value in values:
        change = value - found[-1] if found else 0.0
        near = not found or abs(change) <= nothing
        found.append(value if near else found[-1] + weight * change)
    return found


def round_up(span: float) -> float:
    """Return ``span`` rounded up by an eighth at most, so that a growing curve stands still most of the time."""
    if span <= 0:
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(span)) - 3)
    return math.ceil(span / unit) * unit


def broken_columns(curve: Curve, scale: float, first: float) -> set[int]:
    """Return the dot columns, from ``first`` on, in which values were no numbers."""
    return {max(0, int((x - first) * scale)) for x in curve.broken}


def columns_of(curve: Curve, scale: float, first: float) -> list[tuple[int, float, float, float]]:
    """Return (dot column, mean, lowest, highest) of the points on each column; gaps are filled where all was measured."""
    gaps = {int(((begin + end) / 2 - first) * scale) for begin, end in curve.gaps}
    gaps |= broken_columns(curve, scale, first)
    found: list[tuple[int, float, float, float]] = []
    xs, at = curve.xs, 0
    while at < len(xs):
        column = int((xs[at] - first) * scale)
        # Points are many and columns few: look up and combine those of a column together.
        end = bisect_right(xs, column, at + 1, key=lambda x: int((x - first) * scale))
        mean = mean_of(curve.values[at:end])
        found.append((column, mean, min(curve.lows[at:end]), max(curve.highs[at:end])))
        at = end
    return _join_points(found, sorted(gaps))


def mean_of(values: Sequence[float]) -> float:
    total = sum(values)
    return total / len(values) if math.isfinite(total) else sum(v / len(values) for v in values)


def _join_points(
    points: list[tuple[int, float, float, float]], gaps: Sequence[int]
) -> list[tuple[int, float, float, float]]:
    """Fill the columns between two points by straight lines, so that few points make a curve too."""
    joined: list[tuple[int, float, float, float]] = []
    for here, following in pairwise(points):
        gap = following[0] - here[0]
        # Where a value between the two was no number, no line leads across.
        across = bisect_left(gaps, here[0]) < bisect_right(gaps, following[0])
        for offset in range(min(gap, 1) if across else gap):
            mean, low, high = (
                a + (b - a) * offset / gap for a, b in zip(here[1:], following[1:], strict=True)
            )
            joined.append((here[0] + offset, mean, low, high))
    return [*joined, *points[-1:]]
