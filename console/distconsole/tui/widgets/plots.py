"""Plots: a curve with the ranks' band behind it, or several with their letters, over round axes and a grid.

The upper rows hold the curves; below them lie the axis, at the least value, and its labels.
Curves are drawn in braille dots, 4 x 2 a cell, or in half blocks on a terminal without braille. Plots stand in
their panels, side by side; in two rows if there are lines to spare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.containers import Horizontal
from textual.content import Content
from textual.strip import Strip

from distconsole.formats.figures import nice_ticks, round_seconds, short_time, tick_text
from distconsole.runs.present import reading_text
from distconsole.runs.series import usual_range
from distconsole.tui.theme.glyphs import Glyphs, glyphs
from distconsole.tui.theme.themes import ROLES
from distconsole.tui.widgets.curves import (
    Curve,
    PlotData,
    Scale,
    broken_columns,
    columns_of,
    round_up,
    smoothed,
    value_scale,
)
from distconsole.tui.widgets.line_widget import LineWidget
from distconsole.tui.widgets.panel import Panel

Shown = TypeVar("Shown")
MOST_ROWS = 10
"""Rows of a plot with axis and labels, if others need the room: more show little else."""
MANY = 4
"""Least number of plots in two rows."""
GOOD_CELLS = 50
"""Cells of a plot among more than two."""
SAID_STYLES = {name: f"${variable}" for name, (variable, _) in ROLES.items()}
"""Meaning -> Textual's variable, for words in a border."""

BRAILLE = 0x2800
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bit of the dot at (row, column) in a braille cell of 4 x 2 (Unicode 15, block U+2800)."""
UPPER, LOWER = 0x1B, 0xE4
"""The bits of both halves of a cell."""

AXIS_ROWS = 2
EMPTY = "no values yet"
DASH_DOTS, GAP_DOTS = 6, 2
"""Columns of dots of a dash with its gap, and of the gap: no longer than a cell, to look unlike missing data."""
ON_AXIS = 0.1
"""Values below this part of a row above the foot lie on the axis."""
BROKEN, MARKED, ABOVE, BELOW, SHADE = "!", "✗", "▲", "▼", "░"
"""Marks instead of dots: no number, an error, values beyond the scale; and the band."""
CURVE, BAND, GRID, LABEL = "curve", "band", "frame", "faint"


class Plot(LineWidget):
    """Curves over their axes, drawn again only for a full column of dots."""

    DEFAULT_CSS = "Plot { height: 1fr; min-height: 3; }"

    data: PlotData | None = None
    beyond = ""
    """How far values lie beyond the scale."""
    x_dot = 0.0
    """The x width of a column of dots in the last drawing."""
    _scale = Scale(0.0, 1.0, 2)
    _first = _end = 0.0
    _labels = _columns = 0
    _axis_end = 0
    _cells: list[list[tuple[int | str, str]]]
    _axis: dict[int, str]
    _glyphs: Glyphs

    def show(self, data: PlotData | None) -> None:
        before, self.data = self.data, data
        if (
            data is None
            or before is None
            or data.curves is not before.curves
            or data.until != before.until
        ):
            self.redraw()

    def x_at(self, cell: int) -> float | None:
        """Return the x at ``cell`` of a line; None outside of the axis."""
        column = cell - self._labels - 2
        return self._first + 2 * column * self.x_dot if 0 <= column <= self._axis_end else None

    def make_lines(self) -> list[Strip]:
        rows = max(0, self.content_size.height - AXIS_ROWS)
        self._cells, self._axis, self._glyphs = [], {}, glyphs()
        self.beyond, self.x_dot = "", 0.0
        if self.data is not None and rows:
            self._draw(self.data, rows)
        return super().make_lines()

    def make_line(self, y: int) -> Strip:
        up = self.content_size.height - AXIS_ROWS - y
        if self.data is None or not self._cells:
            empty = f" {EMPTY}" if self.data is not None and y == 0 else ""
            return self.join([Segment(empty, self._style(LABEL))])
        if up < 0:
            return self.join([Segment(self._x_labels(self.data), self._style(LABEL))])
        label = ""
        if up % self._scale.tick_rows == 0:
            label = tick_text(float(f"{self._scale.foot + up * self._scale.a_row:.6g}"))
        foot = "┼" if up == 0 else "┤"
        segments = [Segment(f"{label:>{self._labels}} {foot}", self._style(LABEL))]
        cells = self._axis_cells() if up == 0 else self._cells[y]
        sign_of = _braille_sign if self._glyphs.braille else _half_sign
        for style, alike in groupby(cells, itemgetter(1)):
            signs = [sign if isinstance(sign, str) else sign_of(sign) for sign, _ in alike]
            segments.append(Segment("".join(signs), self._style(style)))
        return self.join(segments)

    def _style(self, name: str) -> Style:
        return self.rich_style + self.app.console.get_style(name, default="")

    def _draw(self, data: PlotData, rows: int) -> None:
        curves = [curve for curve in data.curves if curve.xs]
        if not curves and not any(curve.broken for curve in data.curves):
            return
        if curves:
            self._take_scale(data, curves, rows)
        self._labels = max(
            len(tick_text(float(f"{self._scale.foot + up * self._scale.a_row:.6g}")))
            for up in range(0, rows + 1, self._scale.tick_rows)
        )
        self._columns = max(0, self.cells - self._labels - 2)
        self._cells = [[(0, "")] * self._columns for _ in range(rows)]
        if not curves:
            self._mark({0}, rows - 1, BROKEN, "bad")
            return
        for y in range(rows):
            if (rows - y) % self._scale.tick_rows == 0:
                self._cells[y] = [(self._glyphs.grid, GRID)] * self._columns
        oldest = min(curve.xs[0] for curve in curves)
        self._first = oldest if data.since is None else data.since
        ends = [max(curve.xs[-1], *curve.broken[-1:], self._first) for curve in curves]
        self._end = max(self._first if data.until is None else data.until, *ends)
        span = self._end - self._first
        span = round_up(span) if data.since is None else span
        scale = (self._columns * 2 - 1) / span if span > 0 else 0.0
        self.x_dot = 1 / scale if scale > 0 else 0.0
        self._axis_end = int((self._end - self._first) * scale) // 2
        for curve in curves:
            self._draw_curve(curve, scale, rows, smooth=data.smooth)
        marked = {int((x - self._first) * scale) // 2 for x in data.marks}
        self._mark(marked, rows - 1, MARKED, "bad")

    def _take_scale(self, data: PlotData, curves: Sequence[Curve], rows: int) -> None:
        ranges = [usual_range(curve.lows, curve.highs) for curve in curves]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        lowest = min(min(curve.lows) for curve in curves)
        highest = max(max(curve.highs) for curve in curves)
        reach = high if data.reach is None else max(high, data.reach)
        self._scale = value_scale(low, reach, rows, zero=data.zero)
        above = [f"{ABOVE} {reading_text(highest)}"] if highest > high else []
        below = [f"{BELOW} {reading_text(lowest)}"] if lowest < low else []
        self.beyond = " ".join([*above, *below])

    def _draw_curve(self, curve: Curve, scale: float, rows: int, *, smooth: bool) -> None:
        points = columns_of(curve, scale, self._first)
        top = self._scale.foot + self._scale.a_row * (rows + 0.5)
        row = column = 0
        above, below = set(), set()
        means = smoothed([mean for _, mean, _, _ in points], self._columns * 2 if smooth else 0)
        before: tuple[int, int] | None = None
        for x, _, lowest, highest in points:
            if highest > lowest:
                self._shade(x // 2, self._dot(highest, rows), self._dot(lowest, rows))
        for (x, _, lowest, highest), mean in zip(points, means, strict=True):
            dot, column = self._dot(mean, rows), x // 2
            joined = before is not None and x - before[0] <= 1
            last = before[1] if joined and before is not None else dot
            # Fills the holes of a steep line.
            if not curve.dashed or x % DASH_DOTS < DASH_DOTS - GAP_DOTS:
                top_dot = min(dot, last + 1 if last < dot else dot)
                self._dots(x, top_dot, max(dot, last - 1), curve.style)
            before = x, dot
            row = min(rows - 1, dot // 4)
            above |= {column} if highest > top else set()
            below |= {column} if lowest < self._scale.foot - self._scale.a_row / 2 else set()
        marked = "bad" if curve.style == CURVE else curve.style
        self._mark(above, 0, ABOVE, "warn")
        self._mark(below, rows - 1, BELOW, "warn")
        broken = {each // 2 for each in broken_columns(curve, scale, self._first)}
        self._mark(broken, rows - 1, BROKEN, marked)
        if curve.letter:
            while column > 0 and self._cells[row][column][1] not in ("", curve.style, BAND, GRID):
                column -= 1  # where curves end at one place their letters stand side by side
            self._mark({column}, row, curve.letter, curve.style)

    def _dot(self, value: float, rows: int) -> int:
        """Return the row of dots of ``value``, from the top; ``4 * rows`` is on the axis."""
        up = self._scale.rows_up(value)
        if up < ON_AXIS:
            return rows * 4
        return min(rows * 4 - 1, max(0, rows * 4 + 1 - math.floor(4 * up)))

    def _mark(self, cells: Collection[int], row: int, sign: str, style: str) -> None:
        for cell in cells:
            if cell < len(self._cells[row]):
                self._cells[row][cell] = (sign, style)

    def _shade(self, column: int, top: int, bottom: int) -> None:
        if column >= self._columns:
            return
        blank = (0, self._glyphs.grid)
        for row in range(top // 4, min(bottom // 4, len(self._cells) - 1) + 1):
            if self._cells[row][column][0] in blank:
                self._cells[row][column] = (SHADE, BAND)

    def _dots(self, x: int, top: int, bottom: int, style: str) -> None:
        column = x // 2
        if column >= self._columns:
            return
        for dot in range(top, bottom + 1):
            if dot >= 4 * len(self._cells):
                self._axis[column] = style
                continue
            row = dot // 4
            bits, _ = self._cells[row][column]
            old = bits if isinstance(bits, int) else 0
            self._cells[row][column] = (old | DOTS[dot % 4][x % 2], style)

    def _axis_cells(self) -> list[tuple[int | str, str]]:
        places = self._x_ticks()
        cells: list[tuple[int | str, str]] = []
        for column in range(self._columns):
            if column in self._axis:
                cells.append((self._glyphs.zero, self._axis[column]))
            elif column > self._axis_end:
                cells.append((" ", LABEL))
            else:
                cells.append(("┬" if column in places else "─", LABEL))
        return cells

    def _x_ticks(self) -> dict[int, str]:
        data = self.data
        if data is None or not self.x_dot:
            return {}
        span = self._end - self._first
        if data.x_label:
            places = nice_ticks(self._first, self._end, max(2, self._columns // 9))
            texts = [tick_text(place) if place == int(place) else "" for place in places]
        else:
            places = round_seconds(span)
            texts = [short_time(place) for place in places]
            if data.since is None:
                places = [place if self._first == 0 else self._first + place for place in places]
            else:
                texts = [*(f"-{text}" for text in texts[:0:-1]), "now"]
                places = [self._end - place for place in reversed(places)]
        found = {
            round((place - self._first) / self.x_dot) // 2: text
            for place, text in zip(places, texts, strict=True)
            if 0 <= place - self._first <= span and text
        }
        return {column: text for column, text in found.items() if column < self._columns}

    def _x_labels(self, data: PlotData) -> str:
        """Return the labels of the ticks, each below its own, without those that do not fit."""
        line = ""
        for column, text in self._x_ticks().items():
            begin = max(0, self._labels + 2 + column - len(text) // 2)
            begin = min(begin, self.cells - len(text))
            if not line or begin > len(line):
                line = line.ljust(begin) + text
        room = self.cells - len(line) - 2
        return f"{line}  {data.x_label}" if data.x_label and room >= len(data.x_label) else line


def _braille_sign(bits: int) -> str:
    return chr(BRAILLE + bits) if bits else " "


def _half_sign(bits: int) -> str:
    if not bits:
        return " "
    return "█" if bits & UPPER and bits & LOWER else "▀" if bits & UPPER else "▄"


def spread(spare: int, frame: int, known: int, height: int) -> tuple[int, int]:
    """Return the number of rows for ``known`` plots in ``spare`` lines, and the lines that they take.

    ``frame`` is the lines of a panel's frame, ``height`` the whole view's: on a tall one plots are taller.
    """
    rows = 2 if known >= MANY and spare >= 2 * (frame + MOST_ROWS) else 1
    return rows, min(spare, rows * (frame + max(MOST_ROWS, height // 3)))


class PlotPanel(Panel):
    """A plot in its panel, with its quantity as title and its present figures as state."""

    def __init__(self, keys: str = "", id: str | None = None) -> None:  # noqa: A002
        self.plot = Plot()
        super().__init__("", self.plot, keys=keys, id=id)

    def show(self, data: PlotData) -> None:
        self.plot.show(data)
        said = [
            Content.styled(words, SAID_STYLES.get(style, "$foreground"))
            for words, style in data.said
        ]
        if self.plot.beyond:
            said.insert(0, Content.styled(self.plot.beyond, "$text-warning"))
        legend = [data.legend] if data.legend else []
        if any(len(curve.xs) for curve in data.curves) and data.smooth:
            legend = ["━ mean  ░ lowest to highest rank"]
        self.entitle(data.title, Content("  ").join(said), legend="".join(legend))


class Plots(Horizontal):
    """Plots side by side, ``most`` if each has ``least_cells``, from the chosen or next ones."""

    DEFAULT_CSS = "Plots PlotPanel { width: 1fr; height: 1fr; }"

    def __init__(self, most: int, least_cells: int, id: str) -> None:  # noqa: A002
        self._panels = [PlotPanel() for _ in range(most)]
        super().__init__(*self._panels, id=id)
        self._most, self._least_cells = most, least_cells
        self._chosen: tuple[str, ...] = ()
        self._page = 0
        self._all_shown = False
        self.rows = 1

    def choose(self, names: Sequence[str]) -> str:
        """Show those whose titles begin with one of ``names`` first, or the ``next``; return a message without any."""
        if tuple(names) == ("next",) and self._all_shown:
            return "there are no other plots"
        self._page = self._page + 1 if tuple(names) == ("next",) else 0
        if not self._page:
            self._chosen = tuple(names)
        return ""

    def pick(self, known: Sequence[Shown], title: Callable[[Shown], str]) -> list[Shown]:
        """Return those of ``known`` to show; after the last come the first again."""
        width = self.app.size.width
        wide = max(width // GOOD_CELLS, min(2, width // self._least_cells))
        room = max(1, min(self._most, wide * self.rows))
        found = sorted(known, key=lambda each: not title(each).startswith(self._chosen))
        self._all_shown = len(found) <= room
        if not self._all_shown:
            skip = self._page * room % len(found)
            found = [*found[skip:], *found[:skip]]
        return found[:room]

    def drawn(self, place: int, key: str) -> tuple[PlotData, float] | None:
        """Return the drawn plot at ``place`` if its key is ``key``, with the x width of a column of its dots."""
        plot = self._panels[place].plot
        known = plot.data is not None and plot.data.key == key and plot.x_dot
        return (plot.data, plot.x_dot) if known and plot.data is not None else None

    def show(self, plots: Sequence[PlotData]) -> None:
        self.styles.layout = "grid" if self.rows > 1 else "horizontal"
        columns = max(1, math.ceil(len(plots) / self.rows))
        self.styles.grid_size_columns = columns
        for panel, data in zip_longest(self._panels, plots):
            panel.display = data is not None
            last = bool(plots) and data is plots[-1]
            panel.styles.column_span = 1 + (-len(plots) % columns if last else 0)
            if data is not None:
                panel.show(data)
