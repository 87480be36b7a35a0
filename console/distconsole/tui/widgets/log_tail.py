"""The ranks' lines: the newest in sight until the reader goes back; it costs the lines on the screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events, on
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from distconsole.model.run_events import LogLine
from distconsole.runs.logs.fold import Row
from distconsole.runs.logs.last import LastLine
from distconsole.runs.logs.rows import LogRows, rows_of
from distconsole.tui.widgets.line_widget import LineWidget
from distconsole.tui.widgets.log_line import LineStyle, line_texts, name_cells, rank_colours

SHIFT_CELLS = 20
"""Cells that one press of Left or Right moves long lines by."""

WHEEL_LINES = 3


class LogTail(ScrollView, LineWidget, can_focus=True):
    """Rows of a log; follows the end, stays put while the reader is elsewhere, follows again at the end."""

    CURSOR = "log--cursor"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"log--cursor"}
    DEFAULT_CSS = """
    LogTail { background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: auto; }
    LogTail > .log--cursor { background: $boost; }
    LogTail:focus > .log--cursor { background: $primary 25%; }
    LogTail:focus:light > .log--cursor { background: $primary 18%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "line(-1)", "Up", show=False),
        Binding("down,j", "line(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("space", "page(1)", "Page down", show=False),
        Binding("end,G", "follow", "Follow", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("left", "shift(-1)", "Left", show=False),
        Binding("right", "shift(1)", "Right", show=False),
    ]

    shift = reactive(0)
    wraps = reactive(False)
    times = reactive(False)
    found: reactive[re.Pattern[str] | None] = reactive(None)

    class Moved(Message):
        """The reader is elsewhere, or follows again."""

    rows: LogRows | None = None
    world = 0
    names = 0
    """Cells of the longest name of a source."""
    _speakers = 0
    follows = True
    limit: int | None = None
    """The first row later than the shown moment; None shows all."""
    cursor = 0
    """The reader's row."""
    _places: Sequence[tuple[int, int]] = ()
    """The row and its part on each line of the screen."""
    _last: Sequence[LogLine] = ()
    _seen: Sequence[tuple[int, int]] = ()
    """Identities and repeat counts of the lines shown last."""

    def __init__(self, id: str, empty: str = "") -> None:  # noqa: A002
        super().__init__(id=id)
        self.empty = empty
        """Words in place of rows."""
        self._made: dict[int, list[Strip]] = {}
        """Lines of rows, kept while drawing."""

    @property
    def count(self) -> int:
        count = len(self.rows) if self.rows is not None else 0
        return count if self.limit is None else min(count, self.limit)

    @property
    def top(self) -> int:
        return round(self.scroll_offset.y)

    def show(self, rows: LogRows, world: int) -> None:
        speakers = rows.book.speakers
        if rows is not self.rows or len(speakers) != self._speakers:
            self.names, self._speakers = name_cells(speakers), len(speakers)
        self.rows, self.world = rows, world
        self._resize()
        if self.follows:
            self.cursor = max(0, self.count - 1)
            self._place(self._last_top())
        self.cursor = max(0, min(self.cursor, self.count - 1))
        self.redraw()

    def show_last(self, lines: Sequence[LastLine], world: int) -> None:
        """Show ``lines``, the only ones to see; the reader stays at the same one."""
        seen = [(id(each.line), each.count) for each in lines]
        if seen == self._seen:
            return
        row, above = self.row_under_cursor(), self.cursor - self.top
        read = None if row is None or not self._last else self._last[row.line]
        self._last, self._seen = [each.line for each in lines], seen
        rows = rows_of(self._last, [(each.count, each.until) for each in lines])
        self.show(rows, world)
        if not self.follows:
            places = (at for at, line in enumerate(self._last) if line is read)
            self.cursor = rows.row_of_line(next(places, 0))
            self._place(self.cursor - above)
            self.redraw()

    def go_to(self, row: int) -> None:
        """Move the cursor to ``row``, in sight and away from the edges."""
        height = max(1, self.size.height)
        self.cursor = max(0, min(row, self.count - 1))
        self.follows = False
        seen = [place for place, _ in self._layout(self.top)]
        if not seen or not seen[0] <= self.cursor <= seen[-1]:
            self._place(min(self.cursor - height // 3, self._last_top()))
        self.redraw()
        self.post_message(self.Moved())

    def make_lines(self) -> list[Strip]:
        self._made.clear()
        self._places = self._layout(self.top)
        return super().make_lines()

    def row_under_cursor(self) -> Row | None:
        return self.rows.row(self.cursor) if self.rows is not None else None

    def action_line(self, count: int) -> None:
        self._read_at(self.cursor + count)

    def action_page(self, count: int) -> None:
        rows = len({row for row, _ in self._places}) or 1
        step = count * max(1, rows - 1)
        last = self._last_top()
        top = max(0, min(self.top + step, last))
        self.cursor = max(0, min(self.cursor + step, self.count - 1))
        self.follows = count > 0 and top >= last
        self._settle(top)

    def action_first(self) -> None:
        self._read_at(0)

    def action_follow(self) -> None:
        self.follows = True
        self.cursor = max(0, self.count - 1)
        self._settle(self._last_top())

    def action_shift(self, direction: int) -> None:
        self.shift = max(0, self.shift + direction * SHIFT_CELLS)

    @on(events.MouseScrollUp)
    @on(events.MouseScrollDown)
    def turn_wheel(self, event: events.MouseScrollUp | events.MouseScrollDown) -> None:
        event.stop()
        event.prevent_default()
        self._turn(WHEEL_LINES if isinstance(event, events.MouseScrollDown) else -WHEEL_LINES)

    def scroll_page_up(self, **_: object) -> None:
        self.action_page(-1)

    def scroll_page_down(self, **_: object) -> None:
        self.action_page(1)

    def on_click(self, event: events.Click) -> None:
        if event.y < len(self._places):
            self._read_at(self._places[event.y][0])

    def on_resize(self) -> None:
        self._resize()
        if self.follows:
            self._place(self._last_top())

    def watch_wraps(self) -> None:
        self.on_resize()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Draw all lines again after scrolling; the scrollbar moves the reader, too."""
        super().watch_scroll_y(old_value, new_value)
        if self.is_vertical_scrollbar_grabbed:
            self.follows = self.top >= self._last_top()
            self.cursor = max(self.top, min(self.cursor, self.top + self.size.height - 1))
            self.post_message(self.Moved())
        self.refresh()

    def _read_at(self, row: int) -> None:
        """Move the reader to ``row``; on the last one the tail follows again."""
        row = max(0, min(row, self.count - 1))
        self.follows = row >= self.count - 1 >= self.cursor and row > self.cursor
        self.cursor = row
        top = self.top
        places = [place for place, _ in self._layout(top)]
        if self.follows:
            top = self._last_top()
        elif row < top:
            top = row
        elif places and row > places[-1]:
            top = min(self._last_top(), top + row - places[-1])
        self._settle(top)

    def _turn(self, lines: int) -> None:
        last = self._last_top()
        top = max(0, min(self.top + lines, last))
        self.follows = lines > 0 and top >= last
        if self.follows:
            self.cursor = max(0, self.count - 1)
        else:
            self.cursor = max(top, min(self.cursor, top + max(0, self.size.height - 1)))
        self._settle(top)

    def _settle(self, top: int) -> None:
        self._place(top)
        self.redraw()
        self.post_message(self.Moved())

    def _place(self, top: int) -> None:
        self.scroll_to(y=max(0, top), animate=False, immediate=True, force=True)

    def _resize(self) -> None:
        self._made.clear()
        # Rows that wrap leave fewer than the screen has lines for; the last may then be at the top.
        more = max(0, self.size.height - 1) if self.wraps else 0
        size = Size(self.cells, self.count + more)
        if size != self.virtual_size:
            # Nothing is laid out by it: only the scrollbar changes.
            self.set_reactive(LogTail.virtual_size, size)
            self._scroll_update(size)

    def _last_top(self) -> int:
        height = max(1, self.size.height)
        if not self.wraps:
            return max(0, self.count - height)
        used, top = 0, self.count
        while top > 0:
            used += len(self._parts(top - 1))
            if used > height:
                break
            top -= 1
        return min(top, max(0, self.count - 1))

    def _layout(self, top: int) -> list[tuple[int, int]]:
        height, count = self.size.height, self.count
        if not self.wraps:
            return [(row, 0) for row in range(top, min(top + height, count))]
        places: list[tuple[int, int]] = []
        row = top
        while len(places) < height and row < count:
            places += [(row, part) for part in range(len(self._parts(row)))]
            row += 1
        return places[:height]

    def _style(self) -> LineStyle:
        return LineStyle(
            width=self.cells,
            shift=self.shift,
            times=self.times,
            colours=rank_colours(self.app),
            height=max(1, self.size.height // 2) if self.wraps else 1,
            found=self.found,
            names=self.names,
        )

    def make_line(self, y: int) -> Strip:
        if y >= len(self._places):
            if self.empty and not y:
                return self.strip(Text(f"  {self.empty}", "faint", end=""))
            return Strip.blank(self.cells, self.rich_style)
        row, part = self._places[y]
        parts = self._parts(row)
        return parts[min(part, len(parts) - 1)]

    def _parts(self, number: int) -> list[Strip]:
        if number not in self._made:
            self._made[number] = self._make(number)
        return self._made[number]

    def _make(self, number: int) -> list[Strip]:
        rows = self.rows
        row = rows.row(number) if rows is not None else None
        if rows is None or row is None:
            return [Strip.blank(self.cells, self.rich_style)]
        line = rows.line_of(row)
        if line is None:
            texts = [Text(" this line is no longer kept here", "faint", end="")]
        else:
            texts = line_texts(row, line, rows.book, self.world, self._style())
        here = number == self.cursor and not self.follows
        style = self.cursor_row_style() if here else self.rich_style
        return [self.strip(text, style) for text in texts]
