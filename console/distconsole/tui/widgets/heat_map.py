"""Ranks and moments as coloured half blocks, or as shades where there are few colours; the worst stand beside them.

It zooms from the cluster to hosts to a rank, and keeps no data of its own but the picture.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from functools import cache
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from distconsole.formats.figures import CIVIDIS
from distconsole.model.time_text import clock_text, span_text
from distconsole.text.tables import number_text
from distconsole.tui.terminal.sanitize import shown_name
from distconsole.tui.view_models.heat import LEVELS, PACE, Heat, Worst

SHADES = "·░▒▓█"
"""The scale where colours do not count; a space is unknown."""
LABEL, LIST = 16, 31
LIST_FROM = 76
"""Cells of the screen from which on the worst are listed beside the map."""
AROUND = 4
"""Lines beside the cells: what it is, the time, the scale, the cursor."""


class HeatMap(Widget, can_focus=True):
    """The map. It asks for nothing: ``show`` gives it a picture of ``room`` rows and ``cells`` cells."""

    DEFAULT_CSS = "HeatMap { height: 1fr; min-height: 6; padding: 0 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1, 0)", "Up", show=False),
        Binding("down,j", "move(1, 0)", "Down", show=False),
        Binding("left", "move(0, -1)", "Back in time", show=False),
        Binding("right", "move(0, 1)", "On in time", show=False),
        Binding("pageup", "move(-10, 0)", "Up", show=False),
        Binding("pagedown", "move(10, 0)", "Down", show=False),
        Binding("home", "move(0, -9999)", "Oldest", show=False),
        Binding("end", "move(0, 9999)", "Newest", show=False),
        Binding("n", "next", "Next of the worst", show=False),
        Binding("enter", "zoom", "Zoom in", show=False),
        Binding("backspace", "out", "Zoom out", show=False),
    ]

    class Zoomed(Message):
        """Other ranks are asked for; ``ranks`` is empty for all."""

        def __init__(self, ranks: tuple[int, ...]) -> None:
            super().__init__()
            self.ranks = ranks

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.heat: Heat | None = None
        self.zooms: list[tuple[int, ...]] = []
        self._troubles: tuple[tuple[str, str], ...] = ()
        self._slow: Collection[int] = ()
        self._row = 0
        self._at: int | None = None
        self._next = -1
        self._moved = False
        self._strips: list[Strip] = []
        self._away: dict[int, Strip] = {}
        """Lines of ``heat`` as they are without the cursor, which a key moves on a few of them."""

    @property
    def shaped(self) -> bool:
        """Whether shades stand for colours: with 16 colours, none, or the terminal's own."""
        few = self.app.console.color_system in (None, "standard", "windows")
        return few or "NO_COLOR" in os.environ or self.app.native_ansi_color

    @property
    def lines(self) -> int:
        """Rows that there is room for."""
        lines = max(1, self.content_size.height - AROUND)
        return lines if self.shaped else 2 * lines

    @property
    def cells(self) -> int:
        """Cells of a row that there is room for."""
        width = self.content_size.width
        return max(1, width - LABEL - (LIST if width + 2 >= LIST_FROM else 0))

    @property
    def rank(self) -> int | None:
        """The rank under the cursor, or the worst one there; None where nothing is shown."""
        if self.heat is None:
            return None
        ranks = self.heat.rows[self._row].ranks
        return next((each.rank for each in self.heat.worst if each.rank in ranks), ranks[0])

    def show(
        self,
        heat: Heat | None,
        troubles: Sequence[tuple[str, str]] = (),
        slow: Collection[int] = (),
    ) -> None:
        """Show ``heat`` from now on; only lines that changed are drawn.

        Args:
            heat: None while nothing is known.
            troubles: Mark and words of ranks that stand still or are slow, listed before the figures.
            slow: The ranks that are slow.
        """
        self.heat = heat
        self._troubles, self._slow = tuple(troubles), slow
        self._away.clear()
        if heat is not None and not self._moved:
            worst = heat.worst[:1]
            rows = range(len(heat.rows))
            places = (at for at in rows for each in worst if self._troubled(heat, at, each))
            self._row = next(places, 0)
        if heat is not None:
            self._row = min(self._row, len(heat.rows) - 1)
        self._draw()

    def _draw(self) -> None:
        strips = [self._line(y) for y in range(self.content_size.height)]
        before, self._strips = self._strips, strips
        if len(before) != len(strips):
            self.refresh()
            return
        for y, (old, new) in enumerate(zip(before, strips, strict=True)):
            if old != new:
                self.refresh(Region(0, y, self.size.width, 1))

    def on_resize(self) -> None:
        """What fits depends on the size."""
        self._away.clear()
        self._draw()

    def notify_style_update(self) -> None:
        """Draw in the colours of another theme."""
        super().notify_style_update()
        self._strips = []
        self._away.clear()

    def render_line(self, y: int) -> Strip:
        """Draw line ``y``."""
        if len(self._strips) != self.content_size.height:
            self._strips = [self._line(line) for line in range(self.content_size.height)]
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)

    def _line(self, y: int) -> Strip:
        heat, last = self.heat, self.content_size.height - 1
        if heat is None:
            text = Text("no figures of this yet" if y == 0 else "", style="faint")
        elif y == 0:
            text = self._heading(heat)
        elif y == last:
            text = self._below_cursor(heat)
        elif y == last - 1:
            text = self._scale(heat)
        else:
            return self._line_of_cells(heat, y - 1)
        return self._strip(text)

    def _line_of_cells(self, heat: Heat, line: int) -> Strip:
        paired = self._paired(heat)
        rows = [2 * line, 2 * line + 1] if paired else [line]
        if self._row in rows:
            return self._strip(self._cells_of(heat, line, rows, paired=paired))
        made = self._away.get(line)
        if made is None:
            made = self._strip(self._cells_of(heat, line, rows, paired=paired))
            self._away[line] = made
        return made

    def _paired(self, heat: Heat) -> bool:
        """Whether a line of the screen shows two rows."""
        return not self.shaped and len(heat.rows) > self.content_size.height - AROUND

    def _strip(self, text: Text) -> Strip:
        width, base = self.content_size.width, self.rich_style
        text.truncate(width, overflow="ellipsis")
        segments = [
            Segment(part.text, base + part.style if part.style else base)
            for part in text.render(self.app.console)
            if part.text and not part.control
        ]
        return Strip(segments).simplify().adjust_cell_length(width, base)

    def _heading(self, heat: Heat) -> Text:
        text = Text()
        most = max(len(row.ranks) for row in heat.rows)
        if heat.by_quantity:
            on_host = f" on {shown_name(heat.hosts[0])}" if heat.hosts else ""
            text.append(f"rank {self.rank}{on_host}", style="strong")
            parts = [": each on its own scale"]
        else:
            text.append(shown_name(heat.quantity.title), style="strong")
            parts = [f" of {heat.ranks:,} ranks"]
        if most > 1:
            parts.append(f"{most} a row, each cell the worst")
        parts.append(f"{span_text(heat.cell_seconds)} a cell")
        if self.zooms:
            parts.append("Backspace zooms out")
        return text.append(", ".join(parts), style="note")

    def _cells_of(self, heat: Heat, line: int, rows: Sequence[int], *, paired: bool) -> Text:
        rows = [row for row in rows if row < len(heat.rows)]
        text = self._label(heat, rows)
        levels = [[heat.scales[row].level(value) for value in heat.cells[row]] for row in rows]
        cursor = self._cell(heat) if self._row in rows else -1
        shaped = self.shaped
        for cell, values in enumerate(zip(*levels, strict=True)):
            if cell == cursor:
                text.append("◆", self._cursor_style(max(values), shaped=shaped))
            else:
                text.append(*_drawn(values, shaped=shaped, paired=paired))
        if line == ((len(heat.rows) + 1) // 2 if paired else len(heat.rows)):
            text = self._times(heat)
        if self.content_size.width + 2 >= LIST_FROM:
            text.append(" " * (LABEL + self.cells - text.cell_len + 1))
            text.append_text(self._listed(heat, line))
        return text

    def _label(self, heat: Heat, rows: Sequence[int]) -> Text:
        if not rows:
            return Text(" " * LABEL)
        marked = any(rank in self._slow for row in rows for rank in heat.rows[row].ranks)
        if heat.by_quantity:
            marked = any(
                self._troubled(heat, row, each) and self._is_slow(each)
                for row in rows
                for each in heat.worst
            )
        here = self._row in rows
        name = heat.rows[self._row if here else rows[0]].label
        text = Text(shown_name(name), style="strong" if here else "")
        text.truncate(LABEL - 3, overflow="ellipsis", pad=True)
        label = Text().append("▲ " if marked else "  ", style="warn")
        return label.append_text(text).append(" ")

    def _troubled(self, heat: Heat, row: int, worst: Worst) -> bool:
        """Whether row number ``row`` shows the trouble of ``worst``."""
        shown = heat.rows[row]
        same = heat.scales[row].quantity is worst.quantity
        return same and worst.rank in shown.ranks and not shown.middle

    def _is_slow(self, worst: Worst) -> bool:
        return worst.rank in self._slow and worst.quantity in PACE

    def _cursor_style(self, level: int, *, shaped: bool) -> Style:
        if shaped:
            return Style(reverse=True, bold=True) if self.has_focus else Style(underline=True)
        return Style(bold=self.has_focus, underline=not self.has_focus) + _on(level)

    def _listed(self, heat: Heat, line: int) -> Text:
        """One line of the list beside the map: first who stands still or is slow, then whose figure is worse than usual."""
        if line < len(self._troubles):
            mark, words = self._troubles[line]
            return Text(f"{mark} {shown_name(words)}", style="bad" if mark == "‖" else "warn")
        place = line - len(self._troubles)
        if not heat.worst:
            who = "nothing" if heat.by_quantity else "no rank"
            even = f"{who} is worse by a tenth" if not line else ""
            return Text(even, style="faint")
        if place >= len(heat.worst):
            return Text()
        worst = heat.worst[place]
        unit = worst.quantity.unit
        value = number_text(worst.value, unit) if math.isfinite(worst.value) else "!"
        now = heat.began + (heat.first + heat.count) * heat.cell_seconds
        since = span_text(max(0.0, now - worst.since))
        own = worst.quantity.title if heat.by_quantity else f"{worst.rank} {worst.host}"
        slow = self._is_slow(worst)
        who = f"{'▲' if slow else '·'} {shown_name(own)}"
        tail = f" {value} for {'over ' if worst.always else ''}{since}"
        text = Text(who)
        text.truncate(max(4, LIST - 1 - len(tail)), overflow="ellipsis")
        text.stylize("warn" if slow else "")
        return text.append(tail)

    def _times(self, heat: Heat) -> Text:
        """The time below the first, the middle and the last cell."""
        count = heat.count
        text = Text(" " * LABEL, style="faint")
        first = clock_text(heat.began + heat.first * heat.cell_seconds)
        last = clock_text(heat.began + (heat.first + count) * heat.cell_seconds)
        room = count - len(first) - len(last)
        return text.append(first + (" " * room + last if room > 0 else ""), style="note")

    def _scale(self, heat: Heat) -> Text:
        text = Text(" " * LABEL)
        scale = heat.scales[self._row]
        quantity = scale.quantity
        text.append(f"{number_text(quantity.value(scale.low), quantity.unit)} ", style="note")
        if self.shaped:
            text.append(SHADES)
        else:
            for level in range(0, LEVELS, 2):
                text.append("█", Style(color=_ramp(level)))
        words = f" {number_text(quantity.value(scale.high), quantity.unit)} worst"
        text.append(words, style="note")
        return text.append("  blank: unknown  ! no number", style="faint")

    def _below_cursor(self, heat: Heat) -> Text:
        """Which rank, host, step and value the cursor is on."""
        cell, row = self._cell(heat), heat.rows[self._row]
        badness, quantity = heat.cells[self._row][cell], heat.scales[self._row].quantity
        usual = number_text(quantity.value(heat.usual[self._row][cell]))
        label = shown_name(row.label)
        if heat.by_quantity:
            of = "usual" if row.middle else f"of rank {row.ranks[0]}"
            who = f"{shown_name(quantity.title)} {of}"
        elif len(row.ranks) == 1:
            who = f"rank {label}"
        else:
            who = f"{label}, worst of ranks {row.ranks[0]}-{row.ranks[-1]}"
        value = number_text(quantity.value(badness), quantity.unit)
        if not math.isfinite(badness):
            value = "not known" if badness < 0 else "no number"
        step = heat.steps[cell] if cell < len(heat.steps) else -1
        parts = [f"{who}: {value}", "" if row.middle else f"usual {usual}"]
        if step >= 0:
            parts.append(f"step {step:,}")
        parts.append(clock_text(heat.began + (heat.first + cell) * heat.cell_seconds))
        return Text("◆ " + ", ".join(each for each in parts if each), style="strong")

    def _cell(self, heat: Heat) -> int:
        last = heat.count - 1
        return last if self._at is None else max(0, min(last, self._at - heat.first))

    def action_move(self, rows: int, cells: int) -> None:
        """Move the cursor; at the newest cell it stays with the newest."""
        heat = self.heat
        if heat is None:
            return
        self._moved = True
        self._row = max(0, min(len(heat.rows) - 1, self._row + rows))
        cell = max(0, min(heat.count - 1, self._cell(heat) + cells))
        self._at = None if cell == heat.count - 1 else heat.first + cell
        self._draw()

    def action_next(self) -> None:
        """Go to the row of the next of the worst."""
        heat = self.heat
        if heat is None or not heat.worst:
            return
        self._next = (self._next + 1) % len(heat.worst)
        worst = heat.worst[self._next]
        places = (at for at in range(len(heat.rows)) if self._troubled(heat, at, worst))
        self._row = next(places, self._row)
        self._moved, self._at = True, None
        self._draw()

    def action_zoom(self) -> None:
        """Ask for the ranks of the row under the cursor alone."""
        if self.heat is None or self.heat.by_quantity or len(self.heat.rows) == 1:
            return
        self.zooms.append(self.heat.rows[self._row].ranks)
        self._row, self._moved = 0, False
        self.post_message(self.Zoomed(self.zooms[-1]))

    def action_out(self) -> None:
        """Ask for the ranks that were shown before."""
        if self.zooms:
            self.zooms.pop()
            self._row, self._moved = 0, False
            self.post_message(self.Zoomed(self.zooms[-1] if self.zooms else ()))

    def on_click(self, event: events.Click) -> None:
        """Put the cursor where the mouse is; twice zooms in."""
        place = event.get_content_offset(self)
        if place is None or self.heat is None:
            return
        row = (place.y - 1) * (2 if self._paired(self.heat) else 1)
        cell = place.x - LABEL
        if 0 <= row < len(self.heat.rows) and 0 <= cell < len(self.heat.usual):
            self._row = row
            self.action_move(0, cell - self._cell(self.heat))
            if event.chain == 2:
                self.action_zoom()

    def on_focus(self) -> None:
        """Show the cursor as the place where keys go."""
        self._draw()

    def on_blur(self) -> None:
        """Show the cursor as a mere mark."""
        self._draw()


def _shade(level: int) -> str:
    if level < 0:
        return " "
    return SHADES[min(len(SHADES) - 1, level * len(SHADES) // LEVELS)]


@cache
def _drawn(values: tuple[int, ...], *, shaped: bool, paired: bool) -> tuple[str, Style | str]:
    """Return a cell of one row or two, and how it looks."""
    if LEVELS in values:
        return "!", "bad"
    if shaped:
        return _shade(values[0]), ""
    if len(values) == 1 and not paired:
        return " " if values[0] < 0 else "█", Style(color=_ramp(values[0]))
    upper, lower = (*values, -1)[:2]
    return _half(upper, lower)


def _half(upper: int, lower: int) -> tuple[str, Style]:
    """Return one cell of two rows: the upper half in one colour, the lower in another."""
    if upper < 0 and lower < 0:
        return " ", Style()
    if upper < 0:
        return "▄", Style(color=_ramp(lower))
    if lower < 0:
        return "▀", Style(color=_ramp(upper))
    return "▀", Style(color=_ramp(upper), bgcolor=_ramp(lower))


def _on(level: int) -> Style:
    """Return what can be read on a colour of the scale."""
    back = _ramp(level)
    bright = back.triplet is not None and sum(back.triplet) > 3 * 128
    return Style(color="#000000" if bright else "#ffffff", bgcolor=back)


@cache
def _ramp(level: int) -> Color:
    """Return a colour of the scale: from dark blue to yellow, told apart without red or green."""
    place = max(0, min(LEVELS - 1, level)) / (LEVELS - 1) * (len(CIVIDIS) - 1)
    near = min(int(place), len(CIVIDIS) - 2)
    mixed = [a + (b - a) * (place - near) for a, b in zip(*CIVIDIS[near : near + 2], strict=True)]
    return Color.from_rgb(*mixed)
