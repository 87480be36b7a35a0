"""Curves in braille dots: one with the ranks' band behind it, or several with their letters."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, zip_longest
from typing import ClassVar, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.containers import Horizontal
from textual.strip import Strip

from distconsole.runs.series import usual_range
from distconsole.tui.widgets.line_widget import LineWidget

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of the dot at (row, column) in a braille cell of 4 x 2 (Unicode 15, block U+2800)."""

LABEL_WIDTH = 8
Shown = TypeVar("Shown")
BROKEN, ABOVE, BELOW = "!", "▲", "▼"
"""Marks instead of dots: no number, and what lies beyond the scale."""
CURVE, BAND, LABEL, TITLE = "plot--curve", "plot--band", "plot--label", "plot--title"


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one curve: rising x, the value, and the lowest and highest rank at each.

    Values were no numbers where it is ``broken``; no line leads across ``gaps``, in which nothing was measured.
    The ``letter`` stands at its end; the ``style`` is a component class of the plot, or a meaning.
    """

    xs: Sequence[float]
    values: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    broken: Sequence[float] = ()
    gaps: Sequence[tuple[float, float]] = ()
    letter: str = ""
    style: str = CURVE


def x_figure(x: float) -> str:
    """Return a number of steps or seconds."""
    return f"{x:.0f}" if abs(x) < 1e7 else f"{x:.3g}"


@dataclass(frozen=True, slots=True)
class PlotData:
    """What a plot shows, and in words what its curves are now.

    ``x_label`` is what x counts, ``x_text`` writes a place on the axis, which ends at ``until``, else at the newest point.
    """

    title: str
    curves: tuple[Curve, ...]
    said: tuple[tuple[str, str], ...] = ()
    x_label: str = ""
    until: float | None = None
    x_text: Callable[[float], str] = x_figure


class Plot(LineWidget):
    """Curves with their title, their newest values and their scale."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {CURVE, BAND, LABEL, TITLE}
    DEFAULT_CSS = """
    Plot { height: 1fr; min-height: 4; }
    Plot > .plot--curve { color: $accent; }
    Plot > .plot--band { color: $primary-lighten-2 70%; }
    Plot > .plot--label { color: $text-muted; }
    Plot > .plot--title { color: $text; text-style: bold; }
    """

    data: PlotData | None = None
    _low, _high = 0.0, 1.0
    _x_end, _x_cell = 0.0, 0
    _beyond = ""

    def show(self, data: PlotData | None) -> None:
        if data != self.data:
            self.data = data
            self.redraw()

    def make_lines(self) -> list[Strip]:
        width, height = self.content_size
        columns, rows = max(0, width - LABEL_WIDTH), max(0, height - 2)
        self._cells: list[list[tuple[int | str, str]]] = [[(0, "")] * columns for _ in range(rows)]
        self._beyond = ""
        if self.data is not None and columns and rows:
            self._draw(self.data, columns, rows)
        return super().make_lines()

    def make_line(self, y: int) -> Strip:
        height = self.content_size.height
        if self.data is None:
            return self.join([])
        if y == 0:
            return self.join(self._heading(self.data))
        if y == height - 1:
            return self.join(self._footing(self.data))
        return self.join(self._body(self.data, y - 1, height - 2))

    def _style(self, name: str) -> Style:
        if name in self.COMPONENT_CLASSES:
            return self.get_component_rich_style(name)
        return self.rich_style + self.app.console.get_style(name, default="")

    def _heading(self, data: PlotData) -> list[Segment]:
        said = [*data.said, *([(f"  {self._beyond}", LABEL)] if self._beyond else [])]
        room = max(1, self.cells - sum(len(words) for words, _ in said) - 1)
        title = data.title if len(data.title) <= room else f"{data.title[: room - 1]}…"
        return [
            Segment(title, self._style(TITLE)),
            *(Segment(words, self._style(style)) for words, style in said),
        ]

    def _footing(self, data: PlotData) -> list[Segment]:
        text = ""
        if any(len(curve.xs) > 1 for curve in data.curves):
            first = data.x_text(min(curve.xs[0] for curve in data.curves if curve.xs))
            last = f" {data.x_label} {data.x_text(self._x_end)}"
            room = max(0, self._x_cell + 1 - len(first))
            text = " " * LABEL_WIDTH + first + last.rstrip().rjust(room)
        return [Segment(text, self._style(LABEL))]

    def _body(self, data: PlotData, row: int, rows: int) -> list[Segment]:
        text = ""
        if any(curve.xs for curve in data.curves):
            ends = {rows - 1: self._low, 0: self._high}
            text = figure(ends[row]) if row in ends else ""
        label = text[: LABEL_WIDTH - 1].rjust(LABEL_WIDTH - 1)
        segments = [Segment(f"{label} ", self._style(LABEL))]
        cells = self._cells[row] if row < len(self._cells) else []
        for style, alike in groupby(cells, lambda cell: cell[1]):
            signs = [sign if isinstance(sign, str) else _braille(sign) for sign, _ in alike]
            segments.append(Segment("".join(signs), self._style(style)))
        return segments

    def _draw(self, data: PlotData, columns: int, rows: int) -> None:
        """Turn the curves into cells: dots, or a sign, and their style."""
        curves = [curve for curve in data.curves if curve.xs]
        if not curves:
            self._mark({0} if any(c.broken for c in data.curves) else (), rows - 1, BROKEN, "bad")
            return
        self._take_scale(curves)
        first = min(curve.xs[0] for curve in curves)
        ends = [max(curve.xs[-1], *curve.broken[-1:], first) for curve in curves]
        self._x_end = max(data.until or first, *ends)
        span = _round_up(self._x_end - first)
        scale = (columns * 2 - 1) / span if span > 0 else 0.0
        self._x_cell = int((self._x_end - first) * scale) // 2
        for curve in curves:
            self._draw_curve(curve, scale, first, rows)

    def _draw_curve(self, curve: Curve, scale: float, first: float, rows: int) -> None:
        row = column = 0
        above, below = set(), set()
        for x, value, bottom, top in columns_of(curve, scale, first):
            self._dots(x, self._dot(top, rows), self._dot(bottom, rows), BAND)
            dot = self._dot(value, rows)
            self._dots(x, dot, dot, curve.style)
            row, column = dot // 4, x // 2
            above |= {column} if top > self._high else set()
            below |= {column} if bottom < self._low else set()
        marked = "bad" if curve.style == CURVE else curve.style
        self._mark(above, 0, ABOVE, marked)
        self._mark(below, rows - 1, BELOW, marked)
        broken = {each // 2 for each in broken_columns(curve, scale, first)}
        self._mark(broken, rows - 1, BROKEN, marked)
        if curve.letter:
            while column > 0 and self._cells[row][column][1] not in ("", curve.style, BAND):
                column -= 1  # where curves end at one place their letters stand side by side
            self._mark({column}, row, curve.letter, curve.style)

    def _take_scale(self, curves: Sequence[Curve]) -> None:
        ranges = [usual_range(curve.lows, curve.highs) for curve in curves]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        lowest = min(min(curve.lows) for curve in curves)
        highest = max(max(curve.highs) for curve in curves)
        above = [f"{ABOVE} {figure(highest)}"] if highest > high else []
        below = [f"{BELOW} {figure(lowest)}"] if lowest < low else []
        self._beyond = " ".join([*above, *below])
        if high - low < 1e-12 * max(1.0, abs(high)):
            low, high = low - 0.5 * max(abs(low), 1e-9), high + 0.5 * max(abs(high), 1e-9)
        self._low, self._high = low, high

    def _dot(self, value: float, rows: int) -> int:
        share = (value - self._low) / (self._high - self._low)
        return min(rows * 4 - 1, max(0, round((1 - share) * (rows * 4 - 1))))

    def _mark(self, cells: Collection[int], row: int, sign: str, style: str) -> None:
        for cell in cells:
            if cell < len(self._cells[row]):
                self._cells[row][cell] = (sign, style)

    def _dots(self, x: int, top: int, bottom: int, style: str) -> None:
        for dot in range(top, bottom + 1):
            row, column = dot // 4, x // 2
            bits, before = self._cells[row][column]
            old = bits if isinstance(bits, int) else 0
            own = before if style == BAND and before else style  # curves stand before the band
            self._cells[row][column] = (old | DOTS[dot % 4][x % 2], own)


class Plots(Horizontal):
    """Plots side by side, ``most`` where each has ``least_cells``, of those that were chosen or come next."""

    DEFAULT_CSS = "Plots Plot { width: 1fr; margin-right: 1; }"

    def __init__(self, most: int, least_cells: int, id: str) -> None:  # noqa: A002
        super().__init__(*(Plot(id=f"{id}-{place}") for place in range(most)), id=id)
        self._most, self._least_cells = most, least_cells
        self._chosen: tuple[str, ...] = ()
        self._page = 0

    def choose(self, names: Sequence[str]) -> None:
        """Show those whose titles begin with one of ``names`` first; ``next`` goes on to others."""
        self._page = self._page + 1 if tuple(names) == ("next",) else 0
        if not self._page:
            self._chosen = tuple(names)

    def pick(self, known: Sequence[Shown], title: Callable[[Shown], str]) -> list[Shown]:
        """Return those of ``known`` that are to be shown; after the last come the first again."""
        room = max(1, min(self._most, self.app.size.width // self._least_cells))
        found = sorted(known, key=lambda each: not title(each).startswith(self._chosen))
        if len(found) > room:
            skip = self._page * room % len(found)
            found = [*found[skip:], *found[:skip]]
        return found[:room]

    def show(self, plots: Sequence[PlotData]) -> None:
        for plot, data in zip_longest(self.query(Plot), plots):
            plot.display = data is not None
            plot.show(data)


def _braille(bits: int) -> str:
    return chr(BRAILLE + bits) if bits else " "


def _round_up(span: float) -> float:
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
        # Points are many and columns few: those of one are looked up and taken together.
        end = bisect_right(xs, column, at + 1, key=lambda x: int((x - first) * scale))
        mean = mean_of(curve.values[at:end])
        found.append((column, mean, min(curve.lows[at:end]), max(curve.highs[at:end])))
        at = end
    return _join_points(found, sorted(gaps))


def mean_of(values: Sequence[float]) -> float:
    """Return the mean of ``values``, also where their sum is more than a float can be."""
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
