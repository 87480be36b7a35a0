"""Ranks and times as coloured blocks, or as shades with few colours; the worst stand beside them."""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from types import MappingProxyType
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
from distconsole.text.tables import shorten_middle
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.theme.glyphs import ASCII, glyphs
from distconsole.tui.view_models.heat import LEVELS, PACE, Heat, Scale, Worst
from distconsole.tui.widgets.line_widget import LineWidget

NARROW, WIDE = (16, 32), (24, 42)
"""Cells of a row's name and of the list of the worst: on most screens, and from ``WIDE_FROM`` cells."""
LIST_FROM, WIDE_FROM = 72, 130
"""Least cells with the worst listed beside the map."""
MOST_HIGH = 3
"""Most lines of a row."""


class HeatMap(LineWidget, can_focus=True):
    """The map of a view model, which ``show`` sets."""

    DEFAULT_CSS = "HeatMap { height: 1fr; min-height: 5; }"
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
    zooms: Sequence[tuple[int, ...]] = ()
    _troubles: Sequence[tuple[str, str]] = ()
    _slow: Mapping[int, str] = MappingProxyType({})
    _row = 0
    _at: int | None = None
    """The number of the cell under the cursor; None for the newest."""
    _next = -1
    _moved = False
    _away: dict[int, Strip]
    """Lines without the cursor: a key changes only a few of them."""

    @property
    def shaped(self) -> bool:
        """True if shades stand for colours: with 16 colours, none, or the terminal's own."""
        few = self.app.console.color_system in (None, "standard", "windows") or glyphs() is ASCII
        return few or "NO_COLOR" in os.environ or self.app.native_ansi_color

    @property
    def lines(self) -> int:
        """Lines of the map itself; below it are the times, the cursor's cell, and the scale if not beside it."""
        below = 2 if self._lists_worst else 3
        return max(1, self.content_size.height - below)

    @property
    def rows(self) -> int:
        return self.lines if self.shaped else 2 * self.lines

    @property
    def columns(self) -> int:
        label, listed = self._sides
        return max(1, self.cells - label - listed)

    @property
    def _sides(self) -> tuple[int, int]:
        label, listed = WIDE if self.cells >= WIDE_FROM else NARROW
        return label, listed if self._lists_worst else 0

    @property
    def _lists_worst(self) -> bool:
        return self.cells >= LIST_FROM

    @property
    def rank(self) -> int | None:
        """The rank under the cursor, or the worst one there; None without a map."""
        if self.heat is None:
            return None
        ranks = self.heat.rows[self._row].ranks
        return next((each.rank for each in self.heat.worst if each.rank in ranks), ranks[0])

    def show(
        self,
        heat: Heat | None,
        troubles: Sequence[tuple[str, str]] = (),
        slow: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Show ``heat``; ``troubles`` are mark and words of ranks that are listed before the figures.

        ``slow`` are ranks with their cost, ``9.3 %``, empty if no rank waits for them.
        """
        self.heat = heat
        self._troubles, self._slow = troubles, slow
        self._away = {}
        if heat is not None:
            if not self._moved:
                self._row = self._row_of(heat, heat.worst[0]) if heat.worst else 0
            self._row = min(self._row, len(heat.rows) - 1)
        self.redraw()

    def _row_of(self, heat: Heat, worst: Worst) -> int:
        rows = (row for row in range(len(heat.rows)) if self._shows(heat, row, worst))
        return next(rows, 0)

    def _remake(self) -> Sequence[Strip]:
        if self._made_for != self.content_size:
            self._away = {}
        return super()._remake()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._away = {}

    def make_line(self, y: int) -> Strip:
        heat, last = self.heat, self.content_size.height - 1
        if heat is None:
            return self.strip(Text("no figures of this yet" if y == 0 else "", style="faint"))
        if y == last:
            return self.strip(self._below_cursor(heat))
        if y == last - 1 and not self._lists_worst:
            indent = " " * self._sides[0]
            return self.strip(
                Text(indent).append_text(self._scale(heat, self.cells - len(indent)))
            )
        if self._row in self._rows_at(heat, y):
            return self._cell_line(heat, y)
        if (
            y not in self._away or heat.by_quantity
        ):  # the scale is that of the row under the cursor
            self._away[y] = self._cell_line(heat, y)
        return self._away[y]

    def _rows_at(self, heat: Heat, y: int) -> range:
        """Return the rows in line ``y``: two if there are more rows than lines, none below the last."""
        rows = range(len(heat.rows))
        return rows[2 * y : 2 * y + 2] if self._paired(heat) else rows[y // self._high(heat) :][:1]

    def _high(self, heat: Heat) -> int:
        return max(1, min(MOST_HIGH, self.lines // len(heat.rows)))

    def _paired(self, heat: Heat) -> bool:
        return not self.shaped and len(heat.rows) > self.lines

    def _edges(self, heat: Heat) -> list[int]:
        """Return the first cell of each moment, and the end of the last."""
        return [place * self.columns // heat.count for place in range(heat.count + 1)]

    def _cell_line(self, heat: Heat, y: int) -> Strip:
        label, listed = self._sides
        rows, high = self._rows_at(heat, y), self._high(heat)
        named = self._paired(heat) or y % high == (high - 1) // 2
        segments: list[Segment] = []
        if rows:
            name = self._label(heat, rows) if named else Text(" " * label)
            segments = [*self.segments(name), *self._row_cells(heat, rows, named=named)]
        elif y and self._rows_at(heat, y - 1):
            times = times_text(heat, self._edges(heat))
            segments = self.segments(Text(" " * label).append(times, style="faint"))
        if listed:
            used = sum(segment.cell_length for segment in segments)
            segments.append(Segment(" " * (label + self.columns - used + 1), self.rich_style))
            segments += self.segments(self._beside(heat, y))
        return self.join(segments)

    def _beside(self, heat: Heat, y: int) -> Text:
        listed = len(self._troubles) + len(heat.worst)
        high = 0.5 if self._paired(heat) else self._high(heat)
        foot = y - min(self.lines, max(listed + 3, math.ceil(len(heat.rows) * high))) + 2
        if foot < 0:
            return self._listed(heat, y)
        room = self._sides[1] - 1
        return (self._scale(heat, room), Text().append(NOTE, style="faint"), Text())[min(2, foot)]

    def _scale(self, heat: Heat, room: int) -> Text:
        return scale_text(heat.rows[self._row].scale, room, shaped=self.shaped)

    def heading(self) -> tuple[str, list[str]]:
        """Return the map's title, and words about its rows and cells."""
        heat = self.heat
        if heat is None:
            return "", []
        parts = ["Backspace zooms out"] if self.zooms else []
        most = max(len(row.ranks) for row in heat.rows)
        if most > 1:
            parts.append(f"{most} ranks per row, of which a cell shows the worst")
        parts.append(f"{span_text(heat.cell_seconds)} per cell")
        if heat.by_quantity:
            on_host = f" on {printable_name(heat.hosts[0])}" if heat.hosts else ""
            return f"rank {self.rank}{on_host}: each on its own scale", parts
        return f"{printable_name(heat.quantity.title)} of {heat.ranks:,} ranks", parts

    def _row_cells(self, heat: Heat, rows: Sequence[int], *, named: bool) -> Iterator[Segment]:
        levels = [
            [heat.rows[row].scale.level(value) for value in heat.rows[row].cells] for row in rows
        ]
        cursor = self._cell(heat) if self._row in rows and named else -1
        base, shaped, bad = self.rich_style, self.shaped, self.app.console.get_style("bad")
        paired, edges = self._paired(heat), self._edges(heat)
        for cell, values in enumerate(zip(*levels, strict=True)):
            width = edges[cell + 1] - edges[cell]
            if cell == cursor:
                mark = "◆".center(width)
                yield Segment(mark, base + self._cursor_style(max(values), shaped=shaped))
            elif LEVELS in values:
                yield Segment("!" * width, base + bad)
            elif shaped:
                yield Segment(shade(values[0]) * width, base)
            else:
                lower = (*values, -1)[1] if paired else values[0]
                yield block(base, values[0], lower, width)

    def _label(self, heat: Heat, rows: Sequence[int]) -> Text:
        if heat.by_quantity:
            marked = any(
                self._shows(heat, row, each) and self._is_slow(each)
                for row in rows
                for each in heat.worst
            )
        else:
            marked = any(rank in self._slow for row in rows for rank in heat.rows[row].ranks)
        here, cells = self._row in rows, self._sides[0] - 3
        shown = [heat.rows[self._row].label] if here else [heat.rows[row].label for row in rows]
        text = Text(printable_name(row_name(shown)), style="strong" if here else "")
        if text.cell_len > cells:
            text = Text(shorten_middle(text.plain, cells), text.style)
        text.truncate(cells, overflow="ellipsis", pad=True)
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
        back = ramp(level)
        bright = back.triplet is not None and sum(back.triplet) > 3 * 128
        colours = Style(color="#000000" if bright else "#ffffff", bgcolor=back)
        return Style(bold=self.has_focus, underline=not self.has_focus) + colours

    def _listed(self, heat: Heat, line: int) -> Text:
        """Return a line of the list beside the map: first stalled or slow ranks, then the worst figures."""
        if line < len(self._troubles):
            mark, words = self._troubles[line]
            return Text(f"{mark} {printable_name(words)}", style="bad" if mark == "‖" else "warn")
        place = line - len(self._troubles)
        if not heat.worst:
            who = "nothing" if heat.by_quantity else "no rank"
            even = f"{who} 10 % worse than usual" if not line else ""
            return Text(even, style="faint")
        if place >= len(heat.worst):
            return Text()
        worst = heat.worst[place]
        known = math.isfinite(worst.value)
        value = number_text(worst.value, worst.quantity.unit) if known else "!"
        since = span_text(max(0.0, heat.time_of(heat.count) - worst.since))
        own = worst.quantity.title if heat.by_quantity else f"{worst.rank} {worst.host}"
        slow, room = self._is_slow(worst), self._sides[1] - 1
        usual = f", usual {number_text(worst.usual)}" if known and room > NARROW[1] else ""
        price = self._slow[worst.rank] if slow else ""
        # The cost replaces the beginning: the figure's row has it.
        past = (
            f", costs {price}"
            if price
            else f", {'for ' if usual else ''}{'over ' if worst.always else ''}{since}"
        )
        tail = f" {value}{usual}{past}"
        text = Text(f"{'▲' if slow else '·'} {printable_name(own)}")
        text.truncate(max(4, room - len(tail)), overflow="ellipsis")
        text.stylize("warn" if slow else "")
        return text.append(tail)

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
        price = self._slow.get(row.ranks[0], "") if len(row.ranks) == 1 else ""
        if price:
            parts.append(f"costs {price}")
        if not row.middle and math.isfinite(row.usual[cell]):
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
            self.zooms = (*self.zooms, self.heat.rows[self._row].ranks)
            self._begin_zoom()

    def action_out(self) -> None:
        if self.zooms:
            self.zooms = self.zooms[:-1]
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
        place, heat = event.get_content_offset(self), self.heat
        if place is None or heat is None:
            return
        rows = self._rows_at(heat, place.y)
        cell = bisect_right(self._edges(heat), place.x - self._sides[0]) - 1
        if rows and 0 <= cell < heat.count:
            self._row = rows[0]
            self.action_move(0, cell - self._cell(heat))
            if event.chain == 2:
                self.action_zoom()


SHADES = "·░▒▓█"
"""The scale without colours; a space is unknown."""
NOTE = "blank: no data  !: no number"
TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
TICK_CELLS = 14
"""Cells between two times below the map."""


def scale_text(scale: Scale, room: int, *, shaped: bool) -> Text:
    """Return the scale of colours, or of shades if ``shaped``, and the look of unknown values if there is room."""
    if math.isnan(scale.low):
        return Text()
    quantity = scale.quantity
    low, high = (
        number_text(quantity.value(end), quantity.unit) for end in (scale.low, scale.high)
    )
    text = Text().append(f"{low} ", style="note")
    if shaped:
        text.append(SHADES)
    else:
        for level in range(0, LEVELS, 2):
            text.append("█", Style(color=ramp(level)))
    text.append(f" {high}", style="note")
    for words, style in ((" worst", "note"), (f"  {NOTE}", "faint")):
        if text.cell_len + len(words) <= room:
            text.append(words, style=style)
    return text


def times_text(heat: Heat, edges: Sequence[int]) -> str:
    """Return round times below the cells at whose ``edges`` they are, between the first time and the end."""
    end = clock_text(heat.time_of(heat.count))
    least = TICK_CELLS * heat.count * heat.cell_seconds / max(1, edges[-1])
    each = next((each for each in TICK_SECONDS if each >= least), TICK_SECONDS[-1])
    line, last = clock_text(heat.time_of(0)), edges[-1] - len(end)
    if last <= len(line):
        return line
    for cell, at in enumerate(edges[:-1]):
        tick = heat.time_of(cell) // each
        passed = tick != heat.time_of(cell - 1) // each
        if passed and len(line) + 2 <= at <= last - len(end) - 2:
            line = line.ljust(at) + clock_text(tick * each)
    return line.ljust(last) + end


def row_name(labels: Sequence[str]) -> str:
    """Return the name of the rows of one line: ``2-3 node1`` of ``2 node1`` and ``3 node1``, else the first one's."""
    if len(labels) == 2:
        (rank, _, host), (other, _, its_host) = (label.partition(" ") for label in labels)
        if host == its_host and rank.isdecimal() and other.isdecimal():
            return f"{rank}-{other} {host}"
    return labels[0]


def shade(level: int) -> str:
    return " " if level < 0 else SHADES[min(len(SHADES) - 1, level * len(SHADES) // LEVELS)]


@cache
def block(base: Style, upper: int, lower: int, width: int) -> Segment:
    """Return a moment of two levels: the upper half in one colour, the lower in another."""
    if upper == lower:
        style = base + Style(color=ramp(upper)) if upper >= 0 else base
        return Segment(("█" if upper >= 0 else " ") * width, style)
    if upper < 0:
        return Segment("▄" * width, base + Style(color=ramp(lower)))
    if lower < 0:
        return Segment("▀" * width, base + Style(color=ramp(upper)))
    return Segment("▀" * width, base + Style(color=ramp(upper), bgcolor=ramp(lower)))


@cache
def ramp(level: int) -> Color:
    """Return a colour of the scale: from dark blue to yellow, distinct without red or green."""
    place = max(0, min(LEVELS - 1, level)) / (LEVELS - 1) * (len(CIVIDIS) - 1)
    near = min(int(place), len(CIVIDIS) - 2)
    mixed = [a + (b - a) * (place - near) for a, b in zip(*CIVIDIS[near : near + 2], strict=True)]
    return Color.from_rgb(*mixed)
