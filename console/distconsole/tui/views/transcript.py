"""Everything that verbs said, to be scrolled; laid out for the width that there is."""

from __future__ import annotations

from rich.text import Text
from textual.events import Resize
from textual.widgets import RichLog

from distconsole.tui.transcript import MAX_SHOWN_LINES, Transcript


class TranscriptView(RichLog):
    _place = 0
    """How many lines of the transcript were laid out."""
    _width = 0

    def __init__(self, transcript: Transcript, id: str | None = None) -> None:  # noqa: A002
        super().__init__(max_lines=MAX_SHOWN_LINES, min_width=1, wrap=True, id=id)
        self.border_title = "Said so far"
        self._transcript = transcript

    def forget(self) -> None:
        self.clear()
        self._place = self._transcript.said

    def on_show(self) -> None:
        self.draw()

    def on_resize(self, event: Resize) -> None:
        super().on_resize(event)
        event.prevent_default()
        self.draw()

    def draw(self) -> None:
        """Show what was said since it was drawn last."""
        width = self.scrollable_content_region.width
        if not width or not self.display:
            return
        at_end = self.is_vertical_scroll_end
        if width != self._width:
            self._width, self._place = width, 0
            self.clear()
        lines, self._place = self._transcript.since(self._place)
        for line in lines:
            self.write(Text.from_ansi(line), width, scroll_end=False)
        if lines and at_end:
            self.scroll_end(animate=False, immediate=False, x_axis=False)
