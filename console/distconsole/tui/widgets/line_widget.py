"""A widget made of lines; only changed lines are drawn again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Self

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget


class LineWidget(Widget):
    """A widget whose subclasses make each line."""

    CURSOR = ""
    """The component class with the colour of the cursor's row."""

    _lines: Sequence[Strip] = ()
    _base: Style | None = None
    _cells_wide: int | None = None
    _made_for = Size(0, 0)
    """The size of the made lines; the event of a new size may come after a drawing in it."""

    @property
    def cells(self) -> int:
        """Its width in cells, looked up once a drawing: Textual searches the whole layout for it."""
        return self._measure() if self._cells_wide is None else self._cells_wide

    def _measure(self) -> int:
        return self.scrollable_content_region.width

    @property
    def rich_style(self) -> Style:
        """Its own style, kept until styles change: Textual derives it from all its ancestors."""
        if self._base is None:
            self._base = super().rich_style
        return self._base

    def make_line(self, y: int) -> Strip:
        raise NotImplementedError

    def make_lines(self) -> list[Strip]:
        return [self.make_line(y) for y in range(self.content_size.height)]

    def redraw(self) -> None:
        before, same = self._lines, self._made_for == self.content_size
        now, width = self._remake(), self.size.width
        if not same or len(before) != len(now):
            self.refresh()
            self._lines = now
            return
        lines = enumerate(zip(before, now, strict=True))
        if changed := [Region(0, y, width, 1) for y, (old, new) in lines if old != new]:
            self.refresh(*changed)

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        """Draw again: ``regions``, else everything from its source."""
        if not regions:
            self._lines, self._base = (), None
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)

    def render_line(self, y: int) -> Strip:
        if self._made_for != self.content_size or len(self._lines) != self.content_size.height:
            self._remake()
        return self._lines[y] if y < len(self._lines) else Strip.blank(self.size.width)

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._base = None

    def _remake(self) -> Sequence[Strip]:
        self._made_for = self.content_size
        self._cells_wide = self._measure()
        try:
            self._lines = self.make_lines()
        finally:
            self._cells_wide = None
        return self._lines

    def segments(self, text: Text, base: Style | None = None) -> list[Segment]:
        base = self.rich_style if base is None else base
        return [
            Segment(part.text, base + part.style if part.style else base)
            for part in text.render(self.app.console)
            if part.text and not part.control
        ]

    def strip(self, text: Text, base: Style | None = None) -> Strip:
        text.truncate(self.cells, overflow="ellipsis")
        return self.join(self.segments(text, base), base)

    def join(self, segments: Iterable[Segment], base: Style | None = None) -> Strip:
        base, cells = self.rich_style if base is None else base, self.cells
        line = list(Segment.simplify(segments))
        room = cells - Segment.get_line_length(line)
        if room > 0:
            line.append(Segment(" " * room, base))
        # A strip costs more than all of its text: make one instead of one for each step.
        strip = Strip(line, cells - min(room, 0))
        return strip if room >= 0 else strip.crop(0, cells)

    def cursor_row_style(self) -> Style:
        if self.app.native_ansi_color:  # the terminal's own colours alone
            over = Style(reverse=True) if self.has_focus else Style(underline=True)
        else:
            over = Style(bgcolor=self.get_component_rich_style(self.CURSOR).bgcolor)
        return self.rich_style + over
