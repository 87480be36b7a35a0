"""Lines that ranks printed: the newest in sight until the reader scrolls up. It filters nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import UNSET
from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.geometry import Size
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from distconsole.model.events import LogLine

SHIFT_CELLS = 20
"""How far one press of Left or Right moves long lines."""


class LogTail(ScrollView, can_focus=True):
    """Log lines; follows the end, stays put while the reader is elsewhere, follows again at the end."""

    DEFAULT_CSS = """
    LogTail { background: $background; scrollbar-size-vertical: 1; overflow-x: hidden; overflow-y: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "line(-1)", "Up", show=False),
        Binding("down,j", "line(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("end,G", "follow", "Follow", show=False),
        Binding("home,g", "first", "First", show=False),
        Binding("left", "shift(-1)", "Left", show=False),
        Binding("right", "shift(1)", "Right", show=False),
    ]

    shift = reactive(0)

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._lines: list[LogLine] = []
        self._key: tuple[object, ...] = ()
        self._strips: LRUCache[tuple[LogLine, int, int], Strip] = LRUCache(512)
        self.follows = True

    def show(self, lines: Sequence[LogLine], progress: Sequence[LogLine]) -> None:
        """Show ``lines`` and, below them, the progress lines that stand there now."""
        first, last = (lines[0], lines[-1]) if lines else (None, None)
        key = (len(lines), id(first), id(last), *(id(line) for line in progress))
        if key == self._key:
            return
        self._key = key
        top = self.scroll_offset.y
        anchor = self._lines[top] if not self.follows and top < len(self._lines) else None
        self._lines = [*lines, *progress]
        self.virtual_size = Size(self.size.width, len(self._lines))
        if self.follows:
            self._place(len(self._lines))
        elif anchor is not None:
            # The oldest lines are dropped: what the reader looks at moves up with them, and stays in sight.
            found = (at for at, line in enumerate(self._lines) if line is anchor)
            self._place(next(found, 0))
        self.refresh()

    def _place(self, y: int) -> None:
        y = max(0, min(y, len(self._lines) - self.size.height))
        self.scroll_to(y=y, animate=False, immediate=True, force=True)

    def _read_at(self, y: float) -> None:
        """The reader goes to line ``y``; at the end the tail follows again."""
        self.follows = y >= len(self._lines) - self.size.height
        self._place(round(y))

    def action_line(self, count: int) -> None:
        """Go on or back by lines."""
        self._read_at(self.scroll_offset.y + count)

    def action_page(self, count: int) -> None:
        """Go on or back by screens."""
        self._read_at(self.scroll_offset.y + count * max(1, self.size.height - 1))

    def action_first(self) -> None:
        """Go to the oldest line."""
        self._read_at(0)

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self._read_at(len(self._lines))

    def action_shift(self, direction: int) -> None:
        """Show what lies further right or left in long lines."""
        self.shift = max(0, self.shift + direction * SHIFT_CELLS)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Go back by the wheel."""
        event.stop()
        event.prevent_default()
        self._read_at(self.scroll_offset.y - 3)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Go on by the wheel."""
        event.stop()
        event.prevent_default()
        self._read_at(self.scroll_offset.y + 3)

    def on_resize(self) -> None:
        """Keep the end in sight, or what is read."""
        self.virtual_size = Size(self.size.width, len(self._lines))
        if self.follows:
            self._place(len(self._lines))

    def notify_style_update(self) -> None:
        """Forget what was drawn in the colours of another theme."""
        super().notify_style_update()
        self._strips.clear()

    def render_line(self, y: int) -> Strip:
        """Draw line ``y``."""
        index = y + self.scroll_offset.y
        width = self.size.width
        if index >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        key = (self._lines[index], width, self.shift)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._strips[key] = self._draw(self._lines[index], width)
        return strip

    def _draw(self, line: LogLine, width: int) -> Strip:
        rank = "" if line.rank is UNSET else f"{line.rank} "
        text = Text(end="", no_wrap=True)
        text.append(f"[{rank}{line.host}]", style="faint")
        text.append("! " if line.stream == "err" else " ", style="warn")
        body = Text.from_ansi(line.line.expandtabs(4), end="")
        if line.stream == "err":
            body.stylize_before("warn")
        if self.shift:
            body = body[self.shift :] if self.shift < len(body) else Text()
            text.append("…", style="faint")
        text.append_text(body)
        text.truncate(width, overflow="ellipsis")
        segments = [
            Segment(part.text, self.rich_style + part.style if part.style else self.rich_style)
            for part in text.render(self.app.console)
        ]
        return Strip(segments).adjust_cell_length(width, self.rich_style).crop(0, width)
