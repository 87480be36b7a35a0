"""Curves of several runs on one axis, each in its colour and with its letter; it scales, and keeps no data of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from distconsole.model.comparison import LETTERS, ComparedCurve, ComparedCurves
from distconsole.text.tables import duration_text
from distconsole.tui.widgets.plot import (
    BRAILLE,
    DOTS,
    LABEL_WIDTH,
    Curve,
    broken_columns,
    columns_of,
    figure,
    row_of,
)

COLOURS = ("accent", "good", "warn", "note", "bad", "strong", "faint", "accent")
"""By letter; the letter stands at the end of each curve, for who sees no colours."""


class Curves(Widget):
    """One thing of several runs: title, newest values, the curves, the range of the axis."""

    DEFAULT_CSS = "Curves { height: 1fr; min-height: 5; }"

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._shown: ComparedCurves | None = None
        self._cells: list[list[tuple[str, str]]] = []
        self._scale = (0.0, 1.0)
        self._range = (0.0, 1.0)
        self._drawn: object = None

    def show(self, curves: ComparedCurves | None) -> None:
        """Show ``curves`` from now on; None shows nothing."""
        if curves is not self._shown:
            self._shown, self._drawn = curves, None
            self.refresh()

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw line ``y``: the title, then the curves, then the range of x."""
        width, height = self.size
        if self._shown is None:
            return Strip.blank(width, self.rich_style)
        if self._drawn != (id(self._shown), width, height):
            self._drawn = (id(self._shown), width, height)
            self._draw(self._shown.curves, width - LABEL_WIDTH, height - 2)
        if y == 0:
            segments = self._heading(self._shown)
        elif y == height - 1:
            segments = self._footing(self._shown, width)
        else:
            segments = self._body(y - 1, height - 2)
        return Strip(segments).simplify().adjust_cell_length(width, self.rich_style).crop(0, width)

    def _style(self, name: str) -> Style:
        return self.rich_style + self.app.console.get_style(name, default="")

    def _heading(self, shown: ComparedCurves) -> list[Segment]:
        segments = [Segment(f"{shown.title}  ", self._style("strong"))]
        for curve in shown.curves:
            newest = figure(curve.values[-1]) if curve.values else "no number"
            segments.append(
                Segment(f"{curve.letter} {newest}  ", self._style(colour_of(curve.letter)))
            )
        return segments

    def _footing(self, shown: ComparedCurves, width: int) -> list[Segment]:
        first, last = (axis_figure(shown.axis, x) for x in self._range)
        axis = "" if shown.axis == "seconds" else f"{shown.axis} "
        room = max(0, width - LABEL_WIDTH - len(first))
        text = " " * LABEL_WIDTH + first + f"{axis}{last}".rjust(room)
        return [Segment(text, self._style("faint"))]

    def _body(self, row: int, rows: int) -> list[Segment]:
        low, high = self._scale
        text = figure(high) if row == 0 else figure(low) if row == rows - 1 else ""
        label = Segment(text[: LABEL_WIDTH - 1].rjust(LABEL_WIDTH - 1) + " ", self._style("faint"))
        cells = self._cells[row] if row < len(self._cells) else []
        return [label, *(Segment(sign, self._style(style)) for sign, style in cells)]

    def _draw(self, curves: Sequence[ComparedCurve], columns: int, rows: int) -> None:
        self._cells = [[(" ", "")] * max(0, columns) for _ in range(max(0, rows))]
        full = [curve for curve in curves if curve.xs]
        if not full or columns <= 0 or rows <= 0:
            return
        low, high = _scale(full)
        first = min(curve.xs[0] for curve in full)
        last = max(max(curve.xs[-1], *curve.broken[-1:], first) for curve in full)
        self._scale, self._range = (low, high), (first, last)
        scale = (columns * 2 - 1) / (last - first) if last > first else 0.0
        for curve in full:
            self._draw_one(curve, first, scale, rows)

    def _draw_one(self, curve: ComparedCurve, first: float, scale: float, rows: int) -> None:
        low, high = self._scale
        style = colour_of(curve.letter)
        bits: dict[tuple[int, int], int] = {}
        drawn = Curve(curve.xs, curve.values, curve.lows, curve.highs, curve.broken, curve.gaps)
        row = column = 0
        for x, value, _, _ in columns_of(drawn, scale, first):
            dot = row_of(value, low, high, rows)
            row, column = dot // 4, x // 2
            bits[row, column] = bits.get((row, column), 0) | DOTS[dot % 4][x % 2]
        for (at, place), value_bits in bits.items():
            self._cells[at][place] = (chr(BRAILLE + value_bits), style)
        while column > 0 and self._cells[row][column][0] in LETTERS:
            column -= 1  # where curves end at one place their letters stand side by side
        self._cells[row][column] = (curve.letter, style)
        for broken in broken_columns(drawn, scale, first):
            self._cells[rows - 1][min(broken // 2, len(self._cells[0]) - 1)] = ("!", style)


def colour_of(letter: str) -> str:
    """Return the name of the style in which a run is drawn."""
    return COLOURS[LETTERS.index(letter)]


def axis_figure(axis: str, x: float) -> str:
    """Return a place on an axis as people read it."""
    return duration_text(x) if axis == "seconds" else f"{x:,.0f}"


def _scale(curves: Sequence[ComparedCurve]) -> tuple[float, float]:
    values = [value for curve in curves for value in curve.values if math.isfinite(value)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < 1e-12 * max(1.0, abs(high)):
        half = 0.5 * max(abs(low), 1e-9)
        return low - half, high + half
    return low, high
