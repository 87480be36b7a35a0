"""Ranks and times as coloured half blocks, or as shades where there are few colours; the worst stand beside them."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from typing import ClassVar

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from distconsole.formats.figures import CIVIDIS, number_text
from distconsole.model.time_text import clock_text, span_text
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.heat import LEVELS, PACE, Heat, Worst
from distconsole.tui.widgets.line_widget import LineWidget

SHADES = "·░▒▓█"
"""The scale where colours do not count; a space is unknown."""
LABEL, LIST = 16, 31
LIST_FROM = 76
"""Cells of the screen from which on the worst are listed beside the map."""
AROUND = 4
"""Lines beside the cells: what it is, the time, the scale, the cursor."""


class HeatMap(LineWidget, can_focus=True):
    """The map. It asks for nothing: ``show`` gives it a view model of ``rows`` rows and ``columns`` cells."""

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

    heat: Heat | None = None
    _troubles: Sequence[tuple[str, str]] = ()
    _slow: Collection[int] = ()
    _row = 0
    _at: int | None = None
    """The number of the cell under the cursor; None for the newest."""
    _next = -1
    _moved = False

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.zooms: list[tuple[int, ...]] = []
        self._away: dict[int, Strip] = {}
        """Lines without the cursor, which a key moves on a few of them."""

    @property
    def shaped(self) -> bool:
        """Whether shades stand for colours: with 16 colours, none, or the terminal's own."""
        few = self.app.console.color_system in (None, "standard", "windows")
        return few or "NO_COLOR" in os.environ or self.app.native_ansi_color

    @property
    def rows(self) -> int:
        lines = max(1, self.content_size.height - AROUND)
        return lines if self.shaped else 2 * lines

    @property
    def columns(self) -> int:
        return max(1, self.cells - LABEL - (LIST if self._lists_worst else 0))

    @property
    def _lists_worst(self) -> bool:
        return self.cells + 2 >= LIST_FROM

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
        """Show ``heat``; ``troubles`` are mark and words of ranks that are listed before the figures."""
        self.heat = heat
        self._troubles, self._slow = troubles, slow
        self._away.clear()
        if heat is not None:
            if not self._moved:
                self._row = self._row_of(heat, heat.worst[0]) if heat.worst else 0
            self._row = min(self._row, len(heat.rows) - 1)
        self.redraw()

    def _row_of(self, heat: Heat, worst: Worst) -> int:
        rows = (row for row in range(len(heat.rows)) if self._shows(heat, row, worst))
        return next(rows, 0)

    def on_resize(self) -> None:
        self._away.clear()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._away.clear()

    def make_line(self, y: int) -> Strip:
        heat, last = self.heat, self.content_size.height - 1
        if heat is None:
            return self.strip(Text("no figures of this yet" if y == 0 else "", style="faint"))
        if y == 0:
            return self.strip(self._heading(heat))
        if y == last - 1:
            return self.strip(self._scale(heat))
        if y == last:
            return self.strip(self._below_cursor(heat))
        each = 2 if self._paired(heat) else 1
        rows = range(len(heat.rows))[(y - 1) * each : y * each]
        if self._row in rows:
            return self._cell_line(heat, y - 1, rows, each)
        if y not in self._away:
            self._away[y] = self._cell_line(heat, y - 1, rows, each)
        return self._away[y]

    def _cell_line(self, heat: Heat, place: int, rows: Sequence[int], each: int) -> Strip:
        segments: list[Segment] = []
        if rows:
            segments = [*self.segments(self._label(heat, rows)), *self._row_cells(heat, rows)]
        elif place == -(-len(heat.rows) // each):
            segments = self._times(heat)
        if self._lists_worst:
            used = sum(segment.cell_length for segment in segments)
            segments.append(Segment(" " * (LABEL + self.columns - used + 1), self.rich_style))
            segments += self.segments(self._listed(heat, place))
        return self.join(segments)

    def _paired(self, heat: Heat) -> bool:
        return not self.shaped and len(heat.rows) > self.content_size.height - AROUND

    def _heading(self, heat: Heat) -> Text:
        text = Text()
        most = max(len(row.ranks) for row in heat.rows)
        if heat.by_quantity:
            on_host = f" on {printable_name(heat.hosts[0])}" if heat.hosts else ""
            text.append(f"rank {self.rank}{on_host}", style="strong")
            parts = [": each on its own scale"]
        else:
            text.append(printable_name(heat.quantity.title), style="strong")
            parts = [f" of {heat.ranks:,} ranks"]
        if most > 1:
            parts.append(f"{most} a row, each cell the worst")
        parts.append(f"{span_text(heat.cell_seconds)} a cell")
        if self.zooms:
            parts.append("Backspace zooms out")
        return text.append(", ".join(parts), style="note")

    def _row_cells(self, heat: Heat, rows: Sequence[int]) -> Iterator[Segment]:
        levels = [
            [heat.rows[row].scale.level(value) for value in heat.rows[row].cells] for row in rows
        ]
        cursor = self._cell(heat) if self._row in rows else -1
        base, shaped, bad = self.rich_style, self.shaped, self.app.console.get_style("bad")
        paired = self._paired(heat)
        for cell, values in enumerate(zip(*levels, strict=True)):
            if cell == cursor:
                yield Segment("◆", base + self._cursor_style(max(values), shaped=shaped))
            elif LEVELS in values:
                yield Segment("!", base + bad)
            elif shaped:
                yield Segment(_shade(values[0]), base)
            else:
                yield _block(base, values[0], (*values, -1)[1] if paired else values[0])

    def _label(self, heat: Heat, rows: Sequence[int]) -> Text:
        if heat.by_quantity:
            marked = any(
                self._shows(heat, row, each) and self._is_slow(each)
                for row in rows
                for each in heat.worst
            )
        else:
            marked = any(rank in self._slow for row in rows for rank in heat.rows[row].ranks)
        here = self._row in rows
        name = heat.rows[self._row if here else rows[0]].label
        text = Text(printable_name(name), style="strong" if here else "")
        text.truncate(LABEL - 3, overflow="ellipsis", pad=True)
        label = Text().append("▲ " if marked else "  ", style="warn")
        return label.append_text(text).append(" ")

    def _shows(self, heat: Heat, row: int, worst: Worst) -> bool:
        shown = heat.rows[row]
        same = shown.scale.quantity is worst.quantity
        return same and worst.rank in shown.ranks and not shown.middle

    def _is_slow(self, worst: Worst) -> bool:
        return worst.rank in self._slow and worst.quantity in PACE

    def _cursor_style(self, level: int, *, shaped: bool) -> Style:
        if shaped:
            return Style(reverse=True, bold=True) if self.has_focus else Style(underline=True)
        back = _ramp(level)
        bright = back.triplet is not None and sum(back.triplet) > 3 * 128
        colours = Style(color="#000000" if bright else "#ffffff", bgcolor=back)
        return Style(bold=self.has_focus, underline=not self.has_focus) + colours

    def _listed(self, heat: Heat, line: int) -> Text:
        """One line of the list beside the map: first who stands still or is slow, then whose figure is worse than usual."""
        if line < len(self._troubles):
            mark, words = self._troubles[line]
            return Text(f"{mark} {printable_name(words)}", style="bad" if mark == "‖" else "warn")
        place = line - len(self._troubles)
        if not heat.worst:
            who = "nothing" if heat.by_quantity else "no rank"
            even = f"{who} is worse by a tenth" if not line else ""
            return Text(even, style="faint")
        if place >= len(heat.worst):
            return Text()
        worst = heat.worst[place]
        known = math.isfinite(worst.value)
        value = number_text(worst.value, worst.quantity.unit) if known else "!"
        since = span_text(max(0.0, heat.time_of(heat.count) - worst.since))
        own = worst.quantity.title if heat.by_quantity else f"{worst.rank} {worst.host}"
        slow = self._is_slow(worst)
        tail = f" {value} for {'over ' if worst.always else ''}{since}"
        text = Text(f"{'▲' if slow else '·'} {printable_name(own)}")
        text.truncate(max(4, LIST - 1 - len(tail)), overflow="ellipsis")
        text.stylize("warn" if slow else "")
        return text.append(tail)

    def _times(self, heat: Heat) -> list[Segment]:
        first, last = clock_text(heat.time_of(0)), clock_text(heat.time_of(heat.count))
        room = heat.count - len(first) - len(last)
        words = first + (" " * room + last if room > 0 else "")
        return self.segments(Text(" " * LABEL).append(words, style="note"))

    def _scale(self, heat: Heat) -> Text:
        text = Text(" " * LABEL)
        scale = heat.rows[self._row].scale
        quantity = scale.quantity
        low, high = (
            number_text(quantity.value(end), quantity.unit) for end in (scale.low, scale.high)
        )
        text.append(f"{low} ", style="note")
        if self.shaped:
            text.append(SHADES)
        else:
            for level in range(0, LEVELS, 2):
                text.append("█", Style(color=_ramp(level)))
        text.append(f" {high} worst", style="note")
        return text.append("  blank: unknown  ! no number", style="faint")

    def _below_cursor(self, heat: Heat) -> Text:
        cell, row = self._cell(heat), heat.rows[self._row]
        badness, quantity = row.cells[cell], row.scale.quantity
        label = printable_name(row.label)
        if heat.by_quantity:
            of = "usual" if row.middle else f"of rank {row.ranks[0]}"
            who = f"{printable_name(quantity.title)} {of}"
        elif len(row.ranks) == 1:
            who = f"rank {label}"
        else:
            who = f"{label}, worst of ranks {row.ranks[0]}-{row.ranks[-1]}"
        value = number_text(quantity.value(badness), quantity.unit)
        if not math.isfinite(badness):
            value = "not known" if badness < 0 else "no number"
        parts = [f"{who}: {value}"]
        if not row.middle:
            parts.append(f"usual {number_text(quantity.value(row.usual[cell]))}")
        if cell < len(heat.steps) and heat.steps[cell] >= 0:
            parts.append(f"step {heat.steps[cell]:,}")
        return Text(f"◆ {', '.join([*parts, clock_text(heat.time_of(cell))])}", style="strong")

    def _cell(self, heat: Heat) -> int:
        last = heat.count - 1
        return last if self._at is None else max(0, min(last, self._at - heat.first))

    def action_move(self, rows: int, cells: int) -> None:
        heat = self.heat
        if heat is None:
            return
        self._moved = True
        self._row = max(0, min(len(heat.rows) - 1, self._row + rows))
        cell = max(0, min(heat.count - 1, self._cell(heat) + cells))
        self._at = None if cell == heat.count - 1 else heat.first + cell
        self.redraw()

    def action_next(self) -> None:
        heat = self.heat
        if heat is None or not heat.worst:
            return
        self._next = (self._next + 1) % len(heat.worst)
        self._row = self._row_of(heat, heat.worst[self._next])
        self._moved, self._at = True, None
        self.redraw()

    def action_zoom(self) -> None:
        if self.heat is not None and not self.heat.by_quantity and len(self.heat.rows) > 1:
            self.zooms.append(self.heat.rows[self._row].ranks)
            self._begin_zoom()

    def action_out(self) -> None:
        if self.zooms:
            self.zooms.pop()
            self._begin_zoom()

    def _begin_zoom(self) -> None:
        self._row, self._moved = 0, False
        self.zoom()

    @property
    def zoomed(self) -> tuple[int, ...]:
        return self.zooms[-1] if self.zooms else ()

    def zoom(self) -> None:
        """Show the ranks that are ``zoomed`` to."""

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is None or self.heat is None:
            return
        row = (place.y - 1) * (2 if self._paired(self.heat) else 1)
        cell = place.x - LABEL
        if 0 <= row < len(self.heat.rows) and 0 <= cell < self.heat.count:
            self._row = row
            self.action_move(0, cell - self._cell(self.heat))
            if event.chain == 2:
                self.action_zoom()


def _shade(level: int) -> str:
    return " " if level < 0 else SHADES[min(len(SHADES) - 1, level * len(SHADES) // LEVELS)]


@cache
def _block(base: Style, upper: int, lower: int) -> Segment:
    """Return one cell of two levels: the upper half in one colour, the lower in another."""
    if upper == lower:
        return Segment("█", base + Style(color=_ramp(upper))) if upper >= 0 else Segment(" ", base)
    if upper < 0:
        return Segment("▄", base + Style(color=_ramp(lower)))
    if lower < 0:
        return Segment("▀", base + Style(color=_ramp(upper)))
    return Segment("▀", base + Style(color=_ramp(upper), bgcolor=_ramp(lower)))


@cache
def _ramp(level: int) -> Color:
    """Return a colour of the scale: from dark blue to yellow, told apart without red or green."""
    place = max(0, min(LEVELS - 1, level)) / (LEVELS - 1) * (len(CIVIDIS) - 1)
    near = min(int(place), len(CIVIDIS) - 2)
    mixed = [a + (b - a) * (place - near) for a, b in zip(*CIVIDIS[near : near + 2], strict=True)]
    return Color.from_rgb(*mixed)
