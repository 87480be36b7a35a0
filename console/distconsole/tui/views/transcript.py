"""Everything that verbs said, to be scrolled; laid out for the width that there is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rich.text import Text
from textual.events import Resize
from textual.widgets import RichLog

from distconsole.tui.transcript import MAX_SHOWN_LINES


class TranscriptView(RichLog):
    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(max_lines=MAX_SHOWN_LINES, min_width=1, wrap=True, id=id)
        self.border_title = "Said so far"
        self._told: deque[str] = deque(maxlen=MAX_SHOWN_LINES)
        self._fresh: deque[str] = deque(maxlen=MAX_SHOWN_LINES)
        self._width = 0

    def add(self, lines: Sequence[str]) -> None:
        self._told.extend(lines)
        self._fresh.extend(lines)
        self._lay_out()

    def forget(self) -> None:
        self._told.clear()
        self._fresh.clear()
        self.clear()

    def on_show(self) -> None:
        self._lay_out()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        event.prevent_default()
        self._lay_out()

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if not width or not self.display:
            return
        at_end = self.is_vertical_scroll_end
        if width != self._width:
            self._width = width
            self.clear()
            self._fresh = self._told.copy()
        while self._fresh:
            line = Text.from_ansi(self._fresh.popleft())
            self.write(line, width, scroll_end=at_end and not self._fresh)
