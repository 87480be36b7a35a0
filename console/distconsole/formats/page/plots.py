"""Curves for a page: paths in a box of 1000 x 1000, axes, and points to read off."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from distconsole.formats.figures import nice_ticks, round_seconds, short_time, tick_text
from distconsole.runs.present import reading_text
from distconsole.runs.series import Series, usual_range

MAX_POINTS = 600
"""Points of a curve on the page; beyond that neighbours are merged, their lowest and highest kept."""
SIZE = 1000.0

Point = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class PageTick:
    """A mark of an axis at ``place`` percent of it."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class PagePlot:
    """One curve with its band.

    Attributes:
        line: The SVG path of the mean.
        band: That of the area between lowest and highest; empty without one.
        points: ``x, mean, low, high``, with rising x.
        ends: The x of the left and of the right edge.
        beyond: Where values lie beyond the axis, and how far.
    """

    title: str
    note: str
    unit: str
    over: str
    line: str
    band: str
    points: tuple[Point, ...]
    ends: tuple[float, float]
    x_ticks: tuple[PageTick, ...]
    y_ticks: tuple[PageTick, ...]
    marks: tuple[PageTick, ...]
    last: str
    beyond: tuple[PageTick, ...] = ()

    def data(self) -> dict[str, object]:
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
    until: float | None = None,
) -> PagePlot | None:
    """Return a curve for the page; None for one without a point.

    Args:
        started: Where x is UNIX seconds: what counts as zero. None for a curve over steps.
        zero: Whether the axis of values begins at 0.
        marks: Moments to point out, on the axis of ``series``.
        until: Where the axis of ``series`` ends; None ends it at the last point.
    """
    pieces = _pieces(series, started or 0.0)
    points = [point for piece in pieces for point in piece]
    if not points:
        return None
    first, last = points[0][0], points[-1][0]
    begins_at_zero = started is not None or 0 < first < last / 20
    ends = (0.0 if begins_at_zero else first, max(last, (until or 0.0) - (started or 0.0)))
    if ends[0] >= ends[1]:
        margin = max(0.5, abs(last) * 1e-9)
        ends = (last - margin, last + margin)
    low, high = usual_range(series.lows, series.highs)
    values = nice_ticks(0.0 if zero else low, high, 4)
    place = _Places(ends, (min(low, values[0]), max(high, values[-1])))
    banded = any(low < high for _, _, low, high in points)
    beyond = [
        (x, top if top > high else bottom)
        for x, _, bottom, top in points
        if not place.holds(bottom, top)
    ]
    return PagePlot(
        title=title,
        note=", ".join(filter(None, (note, _beyond_text(beyond, high, unit)))),
        unit=unit,
        over="step" if started is None else "time",
        line="".join(place.path([(x, value) for x, value, _, _ in piece]) for piece in pieces),
        band="".join(map(place.area, pieces)) if banded else "",
        points=tuple(points),
        ends=ends,
        x_ticks=_x_ticks(ends, time=started is not None),
        y_ticks=tuple(PageTick(100 - place.y(value) / 10, tick_text(value)) for value in values),
        marks=tuple(
            PageTick(place.x(x - (started or 0.0)) / 10, text)
            for x, text in marks
            if ends[0] <= x - (started or 0.0) <= ends[1]
        ),
        last=reading_text(series.last),
        beyond=tuple(
            PageTick(place.x(x) / 10, f"{reading_text(value)} {unit}".strip())
            for x, value in beyond
        ),
    )


def _pieces(series: Series, started: float) -> list[list[Point]]:
    points = [(x - started, value, low, high) for x, value, low, high in series.points()]
    size = math.ceil(len(points) / MAX_POINTS)
    places = [0, *(bisect_left(series.xs, end) for _, end in series.gaps), len(points)]
    pieces = [points[begin:end] for begin, end in pairwise(sorted(places)) if begin < end]
    return [merge_points(piece, math.ceil(len(piece) / size)) for piece in pieces]


def _beyond_text(beyond: Sequence[tuple[float, float]], high: float, unit: str) -> str:
    if not beyond:
        return ""
    values = [value for _, value in beyond]
    up = max(values) > high
    farthest = reading_text(max(values) if up else min(values))
    return f"{'▲ up' if up else '▼ down'} to {farthest} {unit}".rstrip() + " is beyond the axis"


def merge_points(points: Sequence[Point], limit: int) -> list[Point]:
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


def _x_ticks(ends: tuple[float, float], *, time: bool) -> tuple[PageTick, ...]:
    low, high = ends
    values = round_seconds(high) if time else nice_ticks(low, high, 4)
    return tuple(
        PageTick(
            100 * (value - low) / (high - low), short_time(value) if time else f"{value:,.0f}"
        )
        for value in values
        if low <= value <= high and (time or value == int(value))
    )


@dataclass(frozen=True, slots=True)
class _Places:
    """From values to the box."""

    ends: tuple[float, float]
    range: tuple[float, float]

    def x(self, x: float) -> float:
        return SIZE * (x - self.ends[0]) / (self.ends[1] - self.ends[0])

    def y(self, value: float) -> float:
        low, high = self.range
        return SIZE * min(1.0, max(0.0, 1 - (value - low) / (high - low)))

    def holds(self, low: float, high: float) -> bool:
        return self.range[0] <= low and high <= self.range[1]

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        if len(points) == 1:
            x, y = self.x(points[0][0]), self.y(points[0][1])
            return f"M{max(0.0, x - 3):.1f} {y:.1f}H{min(SIZE, x + 3):.1f}"
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(value):.1f}" for x, value in points)

    def area(self, points: Sequence[Point]) -> str:
        above = [(x, high) for x, _, _, high in points]
        below = [(x, low) for x, _, low, _ in reversed(points)]
        return "M" + "L".join(f"{self.x(x):.1f} {self.y(v):.1f}" for x, v in above + below) + "Z"
