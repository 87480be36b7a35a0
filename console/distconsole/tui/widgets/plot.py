"""A curve in braille dots with the ranks' band behind it; it scales, and keeps no data of its own."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import ClassVar

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from distconsole.runs.series import usual_range

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of the dot at (row, column) in a braille cell of 4 x 2 (Unicode 15, block U+2800)."""

LABEL_WIDTH = 8
MARKS = {-1: "!", -2: "▲", -3: "▼"}
BROKEN, ABOVE, BELOW = MARKS
"""Marks instead of dots: no number, and what lies beyond the scale."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one curve: rising x, the value, and the lowest and highest rank at each."""

    xs: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    broken: Sequence[float] = ()
    """Where values were NaN or infinite: the curve has a gap there, and a mark."""
    gaps: Sequence[tuple[float, float]] = ()
    """From where to where nothing was measured: no line leads across."""

    def __len__(self) -> int:
        return len(self.xs)


EMPTY = Curve((), (), (), ())


class Plot(Widget):
    """One curve with its title, its newest value and its scale."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "plot--curve",
        "plot--band",
        "plot--label",
        "plot--title",
    }
    DEFAULT_CSS = """
    Plot { height: 1fr; min-height: 4; }
    Plot > .plot--curve { color: $accent; }
    Plot > .plot--band { color: $primary-lighten-2 70%; }
    Plot > .plot--label { color: $text-muted; }
    Plot > .plot--title { color: $text; text-style: bold; }
    """

    def __init__(self, title: str = "", *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._title = title
        self._said = ""
        self._curve = EMPTY
        self._x_label = ""
        self._until: float | None = None
        self._cells: list[list[tuple[int, int]]] = []
        self._x_end = 0.0
        self._x_cell = 0
        self._scale = (0.0, 1.0)
        self._beyond = ""
        self._key: tuple[object, ...] = ()
        self._drawn: tuple[object, ...] = ()

    def show(
        self,
        curve: Curve,
        *,
        title: str,
        said: str = "",
        x_label: str = "",
        until: float | None = None,
    ) -> None:
        """Show ``curve`` from now on; nothing is drawn if it is what is shown already.

        Args:
            curve: Its points.
            title: Its name.
            said: What it is now, in words.
            x_label: What x counts.
            until: Where the axis ends, such as now; None ends it at the newest point.
        """
        last = (curve.xs[-1], curve.values[-1]) if len(curve) else None
        key = (title, x_label, len(curve), last, said, curve.broken, until)
        if key == self._key:
            return
        self._key = key
        self._title = title
        self._said = said
        self._curve = curve
        self._x_label = x_label
        self._until = until
        self._refresh_changed()

    def _refresh_changed(self) -> None:
        """Draw again the cells that changed, and no other, where the scale is what it was."""
        width, height = self.size
        before, scale, end = self._cells, self._scale, self._x_end
        self._draw(width - LABEL_WIDTH, height - 2)
        if scale != self._scale or len(before) != len(self._cells):
            self.refresh()
            return
        self.refresh(Region(0, 0, width, 1))
        if end != self._x_end:
            self.refresh(Region(0, height - 1, width, 1))
        for y, (old, new) in enumerate(zip(before, self._cells, strict=True), 1):
            if len(old) != len(new):
                self.refresh()
                return
            changed = [x for x, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
            if changed:
                first = changed[0]
                self.refresh(Region(LABEL_WIDTH + first, y, changed[-1] - first + 1, 1))

    def render_line(self, y: int) -> Strip:
        """Draw line ``y``: the title, then the curve, then the range of x."""
        width, height = self.size
        if y == 0:
            self._draw(width - LABEL_WIDTH, height - 2)
            return self._heading(width)
        if y == height - 1:
            return self._footing(width)
        return self._body(y - 1, height - 2, width)

    def _heading(self, width: int) -> Strip:
        title = self.get_component_rich_style("plot--title")
        label = self.get_component_rich_style("plot--label")
        newest = f" {self._said}" if self._said else ""
        newest += f"  {self._beyond}" if self._beyond else ""
        room = max(1, width - len(newest) - 1)
        name = self._title if len(self._title) <= room else f"{self._title[: room - 1]}…"
        segments = [Segment(name, title), Segment(newest, label)]
        return Strip(segments).adjust_cell_length(width, self.rich_style).crop(0, width)

    def _footing(self, width: int) -> Strip:
        label = self.get_component_rich_style("plot--label")
        text = ""
        if len(self._curve) > 1:
            first, last = self._x_figure(self._curve.xs[0]), self._x_figure(self._x_end)
            room = max(0, self._x_cell + 1 - len(first))
            text = " " * LABEL_WIDTH + first + f" {self._x_label} {last}".rstrip().rjust(room)
        return (
            Strip([Segment(text, label)]).adjust_cell_length(width, self.rich_style).crop(0, width)
        )

    def _x_figure(self, x: float) -> str:
        return f"{x:.0f}" if abs(x) < 1e7 else f"{x:.3g}"

    def _body(self, row: int, rows: int, width: int) -> Strip:
        label = self.get_component_rich_style("plot--label")
        low, high = self._scale
        text = ""
        if len(self._curve):
            text = figure(high) if row == 0 else figure(low) if row == rows - 1 else ""
        segments = [Segment(text[: LABEL_WIDTH - 1].rjust(LABEL_WIDTH - 1) + " ", label)]
        styles = (
            self.rich_style,
            self.get_component_rich_style("plot--band"),
            self.get_component_rich_style("plot--curve"),
        )
        cells = self._cells[row] if row < len(self._cells) else []
        for (kind, mark), alike in groupby(cells, lambda cell: (cell[1], min(cell[0], 0))):
            if mark:
                style = self.rich_style + self.app.console.get_style("bad", default="bold")
                segments.append(Segment(MARKS[mark] * len(list(alike)), style))
            else:
                text = "".join(chr(BRAILLE + bits) if bits else " " for bits, _ in alike)
                segments.append(Segment(text, styles[kind]))
        return Strip(segments).simplify().adjust_cell_length(width, self.rich_style).crop(0, width)

    def _draw(self, columns: int, rows: int) -> None:
        """Turn the curve into cells of (dots, kind), if they are not: kind 1 is the band, 2 the curve itself."""
        drawn = (self._key, columns, rows)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        self._cells = [[(0, 0)] * max(0, columns) for _ in range(max(0, rows))]
        curve, self._beyond = self._curve, ""
        if columns <= 0 or rows <= 0:
            return
        if not len(curve):
            self._mark({0} if curve.broken else (), rows - 1, BROKEN)
            return
        low, high = self._scaled(curve)
        first = curve.xs[0]
        self._x_end = max(self._until or first, curve.xs[-1], *curve.broken[-1:])
        span = _rounded(self._x_end - first)
        scale = (columns * 2 - 1) / span if span > 0 else 0.0
        self._x_cell = int((self._x_end - first) * scale) // 2
        above, below = set(), set()
        for x, value, bottom, top in columns_of(curve, scale, first):
            self._dots(x, row_of(top, low, high, rows), row_of(bottom, low, high, rows), 1)
            at = row_of(value, low, high, rows)
            self._dots(x, at, at, 2)
            if top > high:
                above.add(x // 2)
            if bottom < low:
                below.add(x // 2)
        self._mark(above, 0, ABOVE)
        self._mark(below, rows - 1, BELOW)
        broken = {column // 2 for column in broken_columns(curve, scale, first)}
        self._mark(broken, rows - 1, BROKEN)

    def _scaled(self, curve: Curve) -> tuple[float, float]:
        """Set the scale, and what is said of values beyond it."""
        low, high = usual_range(curve.lows, curve.highs)
        lowest, highest = min(curve.lows), max(curve.highs)
        above = [f"▲ {figure(highest)}"] if highest > high else []
        below = [f"▼ {figure(lowest)}"] if lowest < low else []
        self._beyond = " ".join([*above, *below])
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5 * max(abs(low), 1e-9), high + 0.5 * max(abs(high), 1e-9)
        self._scale = (low, high)
        return low, high

    def _mark(self, cells: Collection[int], row: int, mark: int) -> None:
        for cell in cells:
            if cell < len(self._cells[row]):
                self._cells[row][cell] = (mark, 2)

    def _dots(self, x: int, top: int, bottom: int, kind: int) -> None:
        for dot in range(top, bottom + 1):
            row, column = dot // 4, x // 2
            bits, before = self._cells[row][column]
            self._cells[row][column] = (bits | DOTS[dot % 4][x % 2], max(kind, before))


def _rounded(span: float) -> float:
    """Return ``span`` rounded up by an eighth at most, so that a growing curve stands still most of the time."""
    if span <= 0:
        return 0.0
    unit = 2.0 ** (math.floor(math.log2(span)) - 3)
    return math.ceil(span / unit) * unit


def row_of(value: float, low: float, high: float, rows: int) -> int:
    """Return the row of dots, from the top, on which ``value`` lies."""
    share = (value - low) / (high - low)
    return min(rows * 4 - 1, max(0, round((1 - share) * (rows * 4 - 1))))


def broken_columns(curve: Curve, scale: float, first: float) -> set[int]:
    """Return the dot columns, from ``first`` on, in which values were no numbers."""
    return {max(0, int((x - first) * scale)) for x in curve.broken}


def columns_of(curve: Curve, scale: float, first: float) -> list[tuple[int, float, float, float]]:
    """Return (dot column, mean, lowest, highest) of the points that fall on each dot column from ``first`` on.

    Columns between two points are filled, but where nothing was measured or a value was no number.
    """
    gaps = {int(((begin + end) / 2 - first) * scale) for begin, end in curve.gaps}
    gaps |= broken_columns(curve, scale, first)
    found: list[tuple[int, float, float, float]] = []
    xs, at = curve.xs, 0
    while at < len(xs):
        column = int((xs[at] - first) * scale)
        # Points are many and columns few: those of one are looked up and taken together.
        end = bisect_right(xs, column, at + 1, key=lambda x: int((x - first) * scale))
        mean = mean_of(curve.values[at:end])
        found.append((column, mean, min(curve.lows[at:end]), max(curve.highs[at:end])))
        at = end
    return _joined(found, sorted(gaps))


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of ``values``, also where their sum is more than a float can be."""
    total = sum(values)
    return total / len(values) if math.isfinite(total) else sum(v / len(values) for v in values)


def _joined(
    points: list[tuple[int, float, float, float]], gaps: Sequence[int]
) -> list[tuple[int, float, float, float]]:
    """Fill the columns between two points by straight lines, so that few points make a curve too."""
    joined: list[tuple[int, float, float, float]] = []
    for here, following in pairwise(points):
        gap = following[0] - here[0]
        # Where a value between the two was no number, no line leads across.
        across = bisect_left(gaps, here[0]) < bisect_right(gaps, following[0])
        for offset in range(min(gap, 1) if across else gap):
            share = offset / gap
            joined.append(
                (
                    here[0] + offset,
                    here[1] + (following[1] - here[1]) * share,
                    here[2] + (following[2] - here[2]) * share,
                    here[3] + (following[3] - here[3]) * share,
                )
            )
    return [*joined, *points[-1:]]


def figure(value: float) -> str:
    """Return a number in at most seven characters."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    size = abs(value)
    if 0.001 <= size < 100000:
        digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
        return f"{value:.{digits}f}"
    return f"{value:.1e}" if value > 0 else f"{value:.0e}"
