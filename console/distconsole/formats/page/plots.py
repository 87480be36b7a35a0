"""Curves as what a page draws of them: paths in a box of 1000 x 1000, axes, and points to read off."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distconsole.formats.figures import LONG, number_text
from distconsole.monitor.series import Series

LEAST_SPAN = 1e-100
"""Values less apart are one value."""
MAX_POINTS = 600
"""Points of a curve on the page; beyond that neighbours are merged, their lowest and highest kept."""
SIZE = 1000.0

Point = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of an axis at ``place`` percent of it."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One curve with its band.

    Attributes:
        line: The SVG path of the mean.
        band: That of the area between lowest and highest; empty where there is none.
        points: ``x, mean, low, high``, with rising x.
        ends: The x of the left and of the right edge.
        merged: How many values a point may stand for.
    """

    title: str
    note: str
    unit: str
    over: str
    line: str
    band: str
    points: tuple[Point, ...]
    ends: tuple[float, float]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    marks: tuple[Tick, ...]
    last: str
    merged: int

    def data(self) -> dict[str, object]:
        """Return what the page's script reads off."""
        columns = zip(*self.points, strict=True)
        xs, *values = ([float(f"{value:.6g}") for value in column] for column in columns)
        exact = [round(point[0], 3) for point in self.points]
        return {
            "over": self.over,
            "unit": self.unit,
            "ends": self.ends,
            "x": exact or xs,
            "y": values,
        }


def plot(
    title: str,
    series: Series,
    *,
    note: str = "",
    unit: str = "",
    started: float | None = None,
    zero: bool = False,
    marks: Sequence[tuple[float, str]] = (),
    count: int = 0,
) -> Plot | None:
    """Return a curve for the page; None for one without a point.

    Args:
        started: Where x is UNIX seconds: what counts as zero. None for a curve over steps.
        zero: Whether the axis of values begins at 0.
        marks: Moments to point out, on the axis of ``series``.
        count: How many values the series stands for, where it keeps fewer.
    """
    points = merged(series.points(), MAX_POINTS)
    if not points:
        return None
    points = [(x - (started or 0.0), value, low, high) for x, value, low, high in points]
    first, last = points[0][0], points[-1][0]
    begins_at_zero = started is not None or 0 < first < last / 20
    ends = (0.0 if begins_at_zero else first, last)
    if ends[0] >= ends[1]:
        margin = max(0.5, abs(last) * 1e-9)
        ends = (last - margin, last + margin)
    bottom = 0.0 if zero else min(low for _, _, low, _ in points)
    top = max(high for _, _, _, high in points)
    values = nice_ticks(bottom, top, 4)
    bottom, top = min(bottom, values[0]), max(top, values[-1])
    place = _Places(ends, (bottom, top))
    banded = any(low < high for _, _, low, high in points)
    return Plot(
        title=title,
        note=note,
        unit=unit,
        over="step" if started is None else "time",
        line=place.path([(x, value) for x, value, _, _ in points]),
        band=place.area(points) if banded else "",
        points=tuple(points),
        ends=ends,
        x_ticks=_x_ticks(ends, time=started is not None),
        y_ticks=tuple(Tick(100 - place.y(value) / 10, _tick_text(value)) for value in values),
        marks=tuple(
            Tick(place.x(x - (started or 0.0)) / 10, text)
            for x, text in marks
            if ends[0] <= x - (started or 0.0) <= ends[1]
        ),
        last=_value_text(series.last),
        merged=max(1, math.ceil(max(count, len(series)) / len(points))),
    )


def merged(points: Sequence[Point], limit: int) -> list[Point]:
    """Return at most ``limit`` points: neighbours averaged, their lowest and highest kept."""
    size = math.ceil(len(points) / limit) if points else 1
    if size == 1:
        return list(points)
    found = []
    for first in range(0, len(points), size):
        some = points[first : first + size]
        xs, values, lows, highs = zip(*some, strict=True)
        found.append((xs[-1], sum(values) / len(values), min(lows), max(highs)))
    return found


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about ``wanted`` round values that enclose ``low`` to ``high``."""
    high = max(low, high)
    if high - low <= LEAST_SPAN:
        margin = abs(low) * 0.1 if abs(low) > LEAST_SPAN else 1.0
        low, high = low - margin if low else 0.0, high + margin
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def _tick_text(value: float) -> str:
    """Return a round value as short as it can be said."""
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.10f}".rstrip("0").rstrip(".")


def _value_text(value: float | None) -> str:
    whole = value is not None and 1000 <= abs(value) < LONG
    return f"{value:,.0f}" if whole else number_text(value)


def _x_ticks(ends: tuple[float, float], *, time: bool) -> tuple[Tick, ...]:
    low, high = ends
    values = _round_seconds(high) if time else nice_ticks(low, high, 4)
    return tuple(
        Tick(100 * (value - low) / (high - low), short_time(value) if time else f"{value:,.0f}")
        for value in values
        if low <= value <= high and (time or value == int(value))
    )


def _round_seconds(high: float) -> list[float]:
    spans = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
    step: float = next(
        (span for span in spans if high / span <= 5), math.ceil(high / 5 / 86400) * 86400
    )
    return [number * step for number in range(int(high / step) + 1)]


def short_time(seconds: float) -> str:
    """Return a moment of a run such as ``1:05`` or ``2:00:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True, slots=True)
class _Places:
    """From values to the box."""

    ends: tuple[float, float]
    range: tuple[float, float]

    def x(self, x: float) -> float:
        return SIZE * (x - self.ends[0]) / (self.ends[1] - self.ends[0])

    def y(self, value: float) -> float:
        low, high = self.range
        return SIZE * (1 - (value - low) / (high - low))

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        if len(points) == 1:
            y = self.y(points[0][1])
            return f"M0 {y:.1f}H{SIZE:.0f}"
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(value):.1f}" for x, value in points)

    def area(self, points: Sequence[Point]) -> str:
        above = [(x, high) for x, _, _, high in points]
        below = [(x, low) for x, _, low, _ in reversed(points)]
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(v):.1f}" for x, v in above + below) + "Z"
