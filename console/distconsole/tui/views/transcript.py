"""The view of the transcript: the whole output of all verbs."""

from __future__ import annotations

from rich.text import Text
from textual.events import Resize
from textual.widgets import RichLog

from distconsole.tui.transcript import MAX_SHOWN_LINES, Transcript


class TranscriptView(RichLog):
    """The whole transcript, laid out for the view's width."""

    _place = 0
    """Laid out lines of the transcript."""
    _width = 0

    def __init__(self, transcript: Transcript, id: str | None = None) -> None:  # noqa: A002
        super().__init__(max_lines=MAX_SHOWN_LINES, min_width=1, wrap=True, id=id)
        self.border_title = "Messages"
        self._transcript = transcript
        self.anchor()

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
        """Add the lines since the last drawing."""
        width = self.scrollable_content_region.width
        if not width or not self.display:
            return
        if width != self._width:
            self._width, self._place = width, 0
            self.clear()
        lines, self._place = self._transcript.since(self._place)
        for line in lines:
            self.write(Text.from_ansi(line), width, scroll_end=False)
        if lines:
            self.refresh(layout=True)  # which goes to the end, unless somebody has scrolled
