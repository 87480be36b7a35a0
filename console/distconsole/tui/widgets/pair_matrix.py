"""Pairs of hosts as a matrix, from the row to the column, with the pair at the cursor in words below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.pairs import (
    FIGURE_CELLS,
    LOOKS,
    Frame,
    Grain,
    Pair,
    Pairs,
    State,
    cell_of,
    frame_for,
)
from distconsole.tui.widgets.line_widget import LineWidget

TWO_DIGITS = 10
FILLS = "░▒▓"
"""Glyphs that fill a cell of any width."""

NOTES = {
    Grain.TROUBLED: "only hosts in trouble; a cell is the worse direction",
    Grain.BLOCKS: "a cell is the worst pair of several hosts",
}


class PairMatrix(LineWidget, can_focus=True):
    DEFAULT_CSS = "PairMatrix { height: 1fr; min-height: 4; padding: 0 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1, 0)", "Up", show=False),
        Binding("down,j", "move(1, 0)", "Down", show=False),
        Binding("left,h", "move(0, -1)", "Left", show=False),
        Binding("right,l", "move(0, 1)", "Right", show=False),
        Binding("home", "move(-9999, -9999)", "First", show=False),
        Binding("end", "move(9999, 9999)", "Last", show=False),
        Binding("n", "next", "Next in trouble", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    class Moved(Message):
        """The cursor is on another pair."""

    class Chosen(Message):
        """Enter or a double click on a cell."""

    pairs = Pairs()
    cursor = (0, 0)
    _frame = frame_for(pairs, 1, 1)
    _grid: Sequence[Sequence[tuple[State, Pair]]] = ()
    _moved = False

    def show(self, pairs: Pairs) -> None:
        if pairs != self.pairs:
            self.pairs = pairs
            self._lay_out()

    def on_resize(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        size = self.content_size
        self._frame = frame_for(self.pairs, size.width, size.height - 1)
        rows, columns = range(len(self._frame.rows)), range(len(self._frame.columns))
        self._grid = [[cell_of(self.pairs, self._frame, r, c) for c in columns] for r in rows]
        self._put_cursor(*(self.cursor if self._moved else self._worst()))

    def _worst(self) -> tuple[int, int]:
        """The worst cell's place: the cursor's until the user moves it."""
        places = [(r, c) for r, row in enumerate(self._grid) for c in range(len(row))]
        return max(places, key=lambda at: self._grid[at[0]][at[1]][0], default=(0, 0))

    @property
    def wanted_lines(self) -> int:
        """Lines of the heading, the hosts' rows, and the legend."""
        return len(self.pairs.hosts) + 4

    @property
    def pair(self) -> Pair | None:
        row, column = self.cursor
        return self._grid[row][column][1] if self._grid else None

    def make_line(self, y: int) -> Strip:
        if not self._grid:
            text = Text(" no pair of hosts was tried yet" if y == 0 else "", style="faint")
        elif y == 0:
            text = self._heading()
        elif y <= len(self._grid):
            text = self._cells(y - 1)
        else:
            text = self._legend(y - 1 - len(self._grid))
        return self.strip(text)

    def _heading(self) -> Text:
        frame, here = self._frame, self.cursor[1]
        count, text = (
            len(frame.columns),
            "from \\ to"[: frame.label_width].ljust(frame.label_width),
        )
        each = 1 if count < TWO_DIGITS and frame.width > 1 else 5
        marked = slice(0, 0)
        for column in sorted({*range(0, count, each), here}):
            number = str(self._number(frame.columns[column]))
            start = frame.label_width + (column + 1) * frame.width - len(number)
            if column == here:
                marked = slice(start, start + len(number))
            elif start < len(text) and column:
                continue
            text = text[:start].ljust(start) + number
        heading = Text(text, style="faint")
        heading.stylize("reverse", marked.start, marked.stop)
        return heading

    def _number(self, group: tuple[str, ...]) -> int:
        return self.pairs.hosts.index(group[0]) + 1

    def _cells(self, row: int) -> Text:
        frame, here = self._frame, row == self.cursor[0]
        text = self._label(frame, row, here=here)
        for column, (state, pair) in enumerate(self._grid[row]):
            glyph, meaning, _ = LOOKS[state]
            style = self.app.console.get_style(meaning, default="")
            if here and column == self.cursor[1]:
                style += Style(reverse=True) if self.has_focus else Style(underline=True)
            text.append(self._cell_text(glyph, pair), style=style)
        return text

    def _cell_text(self, glyph: str, pair: Pair) -> str:
        width = self._frame.width
        if width == FIGURE_CELLS:
            figure = self.pairs.figure(*pair)
            return f" {glyph} {figure:>{width - 3}.{width - 3}}" if figure else glyph.rjust(width)
        return glyph * width if glyph in FILLS else glyph.rjust(width)

    def _label(self, frame: Frame, row: int, *, here: bool) -> Text:
        group = frame.rows[row]
        first, last = self._number(group), self._number(group) + len(group) - 1
        number = f"{first:>3}" if first == last else f"{first}-{last}"
        text = Text(f"{number} {printable_name(group[0])}", style="strong" if here else "")
        text.truncate(frame.label_width - 1, overflow="ellipsis", pad=True)
        return text.append(" ")

    def _legend(self, line: int) -> Text:
        lines = [Text(" ", style="faint")]
        for state in State:
            count = self.pairs.counts[state]
            if count:
                glyph, style, words = LOOKS[state]
                if lines[-1].cell_len + len(f"{glyph} {count} {words}") > self.cells:
                    lines.append(Text(" ", style="faint"))
                lines[-1].append(f"{glyph} ", style=style).append(f"{count} {words}  ")
        note = NOTES.get(self._frame.grain, "")
        if self._frame.width == FIGURE_CELLS:
            note = "figures: Gbit/s" if self.pairs.are_rated else "figures: round trip in µs"
        lines.append(Text(f" {note}", style="faint"))
        return lines[line] if line < len(lines) else Text()

    def action_move(self, rows: int, columns: int) -> None:
        self._moved = True
        self._put_cursor(self.cursor[0] + rows, self.cursor[1] + columns)

    def action_next(self) -> None:
        width = len(self._frame.columns)
        start = self.cursor[0] * width + self.cursor[1]
        total = width * len(self._grid)
        for step in range(1, total):
            row, column = divmod((start + step) % total, width)
            if self._grid[row][column][0].trouble:
                self._moved = True
                self._put_cursor(row, column)
                return

    def _put_cursor(self, row: int, column: int) -> None:
        last_row, last_column = len(self._frame.rows) - 1, len(self._frame.columns) - 1
        self.cursor = max(0, min(row, last_row)), max(0, min(column, last_column))
        self.redraw()
        self.post_message(self.Moved())

    def action_choose(self) -> None:
        if self.pair is not None:
            self.post_message(self.Chosen())

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is None or not self._grid:
            return
        line, column = place.y - 1, place.x - self._frame.label_width
        if 0 <= line < len(self._frame.rows) and column >= 0:
            self._moved = True
            self._put_cursor(line, column // self._frame.width)
            if event.chain == 2:
                self.action_choose()
