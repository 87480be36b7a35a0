"""A table drawn by lines: it costs the rows on the screen, however many it holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import FIFOCache
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from distconsole.text.tables import Column, shorten_middle
from distconsole.tui.later import RunLine
from distconsole.tui.widgets.line_widget import LineWidget

NONE_MATCH = "nothing matches the filter; Esc shows all"
MOST_FILLED = 56
"""Most cells that a filling column grows by."""
CELLS_KEPT = 2048
"""More than a large screen has."""
Row = TypeVar("Row")


class LineTable(ScrollView, LineWidget, Generic[Row], can_focus=True):
    """Rows under a fixed heading, with a cursor that stays on its row when the order changes."""

    CURSOR = "table--cursor"
    COMPONENT_CLASSES: ClassVar[set[str]] = {"table--heading", "table--cursor", "table--empty"}
    DEFAULT_CSS = """
    LineTable { height: auto; min-height: 2; background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; }
    LineTable > .table--heading { color: $text-muted; text-style: bold; }
    LineTable > .table--cursor { background: $boost; }
    LineTable:focus > .table--cursor { background: $primary 25%; }
    LineTable:focus:light > .table--cursor { background: $primary 18%; }
    LineTable > .table--empty { color: $text-muted; text-style: italic; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "edge(-1)", "First", show=False),
        Binding("end,G", "edge(1)", "Last", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    cursor = reactive(0, repaint=False)
    sorted_by = reactive("")
    filtered = False
    """True if a condition hides rows, which explains an empty table."""
    rows: Sequence[Row] = ()
    _left_out: tuple[str, ...] = ()
    _placed: Sequence[tuple[Column[Row], int]] = ()
    """The columns of the lines being made, and their cells."""
    _held = False

    @dataclass
    class About(Message):
        table: LineTable[Any]

        @property
        def control(self) -> LineTable[Any]:
            return self.table

    class Chosen(About):
        """Enter or a double click on a row."""

    class Moved(About):
        """The cursor is on another row."""

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        *,
        same: Callable[[Row], Hashable] | None = None,
        empty: str = "",
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._columns = list(columns)
        self._same = same
        self._empty = empty
        self._made: FIFOCache[object, list[Segment]] = FIFOCache(CELLS_KEPT)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._made.clear()

    def show(self, rows: Sequence[Row]) -> None:
        resized = len(rows) != len(self.rows)
        cursor = self._follow_cursor(rows)
        self.rows = rows
        if resized:
            self.virtual_size = Size(self.cells, len(rows) + 1)
            self.refresh(layout=True)
        self.cursor = cursor
        self.redraw()

    def set_columns(self, columns: Sequence[Column[Row]]) -> None:
        self._columns = list(columns)
        self.redraw()

    def leave_out(self, titles: Sequence[str]) -> None:
        if tuple(titles) != self._left_out:
            self._left_out = tuple(titles)
            self.redraw()

    def _follow_cursor(self, rows: Sequence[Row]) -> int:
        last = max(0, len(rows) - 1)
        before = self.row_under_cursor()
        if not self._held or before is None or self._same is None or not rows:
            return min(self.cursor, last)
        wanted = self._same(before)
        if self.cursor <= last and self._same(rows[self.cursor]) == wanted:  # as nearly always
            return self.cursor
        places = (place for place, row in enumerate(rows) if self._same(row) == wanted)
        return next(places, min(self.cursor, last))

    def words_of(self, row: Row) -> str:
        return " ".join(str(column.cell(row)) for column in self._columns)

    def row_under_cursor(self) -> Row | None:
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(2, len(self.rows) + 1)

    def make_lines(self) -> list[Strip]:
        self._placed = self._rooms()
        return super().make_lines()

    def make_line(self, y: int) -> Strip:
        if y == 0:
            style = self.get_component_rich_style("table--heading")
            return self._row_strip(None, style)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self.rows):
            why = NONE_MATCH if self.filtered else self._empty
            empty = why if y == 1 and not self.rows else ""
            style = self.get_component_rich_style("table--empty")
            return self.join([Segment(f" {empty}", style)])
        row = self.rows[index]
        style = self.cursor_row_style() if index == self.cursor else self.rich_style
        return self._row_strip(row, style)

    def _title(self, column: Column[Row], room: int) -> str:
        title = column.title if column.heading is None else column.heading(self.rows, room)
        if not column.sort or column.sort != self.sorted_by:
            return title
        return f"{title[: room - 1]}▾"

    def _visible(self) -> list[Column[Row]]:
        """The columns that fit, in order; the least needed give way first."""
        columns = [each for each in self._columns if each.title not in self._left_out]
        while len(columns) > 1 and sum(c.width + 1 for c in columns) > self.cells + 1:
            least = max(columns, key=lambda column: column.need)
            if least.need == 0:
                break
            columns.remove(least)
        return columns

    def _rooms(self) -> list[tuple[Column[Row], int]]:
        """Return the columns that fit with their cells: spare ones go to wide columns, to a filling one, to the last one."""
        columns = self._visible()
        spare = max(0, self.cells + 1 - sum(column.width + 1 for column in columns))
        rooms: list[int] = []
        for column in columns:
            rooms.append(column.width + min(spare, max(0, column.wide - column.width)))
            spare -= rooms[-1] - column.width
        for place in [place for place, column in enumerate(columns) if column.fill][:1]:
            rooms[place] += min(spare, MOST_FILLED)
            spare -= min(spare, MOST_FILLED)
        rooms[-1] += 0 if columns[-1].right else spare
        return list(zip(columns, rooms, strict=True))

    def _row_strip(self, row: Row | None, style: Style) -> Strip:
        """Return the cells of ``row`` side by side, or the headings if it is None."""
        pieces: list[Segment] = []
        for column, room in self._placed:
            if row is None:
                cell: Text | str = self._title(column, room)
            else:
                cell = column.cell(row) if column.fill is None else column.fill(row, room)
            text = Text(cell) if isinstance(cell, str) else cell
            if column.middle and row is not None and len(text) > room:
                text = Text(shorten_middle(text.plain, room), text.style)
            pieces += [*self._cell(text, room, style, right=column.right), Segment(" ", style)]
        return self.join(pieces, style)

    def _cell(self, text: Text, room: int, style: Style, *, right: bool) -> list[Segment]:
        """Return ``text`` in ``room`` cells, from the cache if unchanged, as most of a row is."""
        key = (text.plain, text.style, tuple(text.spans), room, style, right)
        made = self._made.get(key)
        if made is None:
            # Text.render leaves the text's own style out if it has no spans.
            base = style + self.app.console.get_style(text.style, default="")
            text = text.copy()
            text.truncate(room, overflow="ellipsis")
            text.align("right" if right else "left", room)
            made = self._made[key] = self.segments(text, base)
        return made

    def watch_cursor(self, _before: int, _after: int) -> None:
        height = max(1, self.size.height - 1)
        if self.cursor < self.scroll_offset.y:
            self.scroll_to(y=self.cursor, animate=False, immediate=True)
        elif self.cursor >= self.scroll_offset.y + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False, immediate=True)
        self.redraw()
        self.post_message(self.Moved(self))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self.refresh()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.cells, len(self.rows) + 1)

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, len(self.rows) - 1))

    def to_top(self) -> None:
        """Put the cursor on the first row, and keep it there whatever row that becomes."""
        self._held = False
        self.cursor = 0
        self.scroll_to(y=0, animate=False, immediate=True)

    def action_move(self, rows: int) -> None:
        self._held = True
        self.cursor += rows

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(1, self.size.height - 2))

    def action_edge(self, direction: int) -> None:
        self._held = direction > 0
        self.cursor = 0 if direction < 0 else len(self.rows) - 1

    def action_choose(self) -> None:
        if self.rows:
            self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        if event.y == 0:
            self._ask_sort(event.x)
            return
        index = event.y - 1 + self.scroll_offset.y
        if index < len(self.rows):
            self._held = True
            self.cursor = index
            if event.chain == 2:
                self.action_choose()

    def _ask_sort(self, x: int) -> None:
        end = 0
        for column, room in self._rooms():
            end += room + 1
            if x < end:
                if column.sort:
                    self.post_message(RunLine(f"sort {column.sort}"))
                return
