"""A panel: a frame with its title, its state and keys in the upper border, its legend in the lower."""

from __future__ import annotations

from typing import Any, Self

from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.widget import Widget

from distconsole.tui.theme.glyphs import glyphs
from distconsole.tui.widgets.lines import whole_parts

LINE = "─"
RULED_TO = 80
"""Columns up to which panels have a titled rule instead of a frame, as on short screens."""


class Panel(Vertical):
    """A framed container; the frame has the accent's colour while the focus is inside.

    Only ``entitle`` changes the frame, and draws the line that changed. Without room, words on the right
    side give way: the keys first, then the state.
    """

    DEFAULT_CSS = """
    Panel { height: auto; border: round $frame; padding: 0 1; background: $background; }
    Panel.-plain { border: solid $frame; }
    Panel:focus-within { border: round $accent; }
    Panel.-plain:focus-within { border: solid $accent; }
    .-ruled Panel, .-short Panel { border: none; border-top: solid $frame; padding: 0 1; }
    .-ruled Panel:focus-within, .-short Panel:focus-within { border: none; border-top: solid $accent; }
    """

    _drawn: Region | None = None
    """The changing line of the frame; None draws all."""

    def __init__(
        self,
        title: str = "",
        *children: Widget,
        keys: str = "",
        legend: Content | str = "",
        id: str | None = None,  # noqa: A002
        classes: str | None = None,
    ) -> None:
        super().__init__(*children, id=id, classes=classes)
        self.set_class(glyphs().border == "solid", "-plain")
        self._words: list[Any] = [title, "", keys, legend]
        self._written: dict[str, Content] = {}

    @property
    def framed(self) -> bool:
        """True with all four sides, not just a rule above."""
        return bool(self.styles.border_left[0])

    @property
    def title_text(self) -> str:
        return self._written["border_title"].plain if self._written else ""

    def entitle(
        self,
        title: str | None = None,
        state: Content | str | None = None,
        *,
        keys: str | None = None,
        legend: Content | str | None = None,
    ) -> None:
        """Change the frame's words; None leaves them."""
        given = (title, state, keys, legend)
        words = [old if new is None else new for old, new in zip(self._words, given, strict=True)]
        if words != self._words:
            self._words = words
            self._label()

    def on_resize(self) -> None:
        self._label()

    def watch_virtual_size(self) -> None:
        """Write the frame in the same picture as the content: the resize event comes later, or never."""
        self._label()

    def _label(self) -> None:
        title, state, keys, legend = self._words
        width = self.outer_size.width - (6 if self.framed else 2)
        if width < 1:
            return
        top = heading(title, state, keys, width, framed=self.framed)
        low = Content.styled(legend, "$text-muted") if isinstance(legend, str) else legend
        self._draw("border_title", top, 0)
        self._draw(
            "border_subtitle", low.truncate(width, ellipsis=True), self.outer_size.height - 1
        )

    def _draw(self, side: str, words: Content, y: int) -> None:
        """Write ``words`` on line ``y`` of the frame, without drawing the content."""
        before = self._written.get(side)
        if before is None or not words.is_same(before):
            self._written[side] = words
            offset = self.content_offset
            self._drawn = Region(-offset.x, y - offset.y, self.outer_size.width, 1)
            setattr(self, side, words)
            self._drawn = None

    def refresh(
        self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False
    ) -> Self:
        if self._drawn is not None:
            regions = (self._drawn,)
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)


def heading(
    title: str, state: Content | str, keys: str, width: int, *, framed: bool = True
) -> Content:
    """Return the words of an upper border in ``width`` cells; lines between them have the border's colour."""
    left = Content.assemble(
        "" if framed else f"{LINE} ", (title, "bold $foreground"), " " if title else ""
    )
    end = "" if framed else " "  # a frame has its own
    most = width - left.cell_length - len(end) - 2
    if isinstance(state, str):
        said = Content.styled(state, "$text-muted")
        cut = Content.styled(whole_parts(state, most), "$text-muted")
    else:
        said, cut = state, state.truncate(max(0, most), ellipsis=True)
    for shown in (
        (said, Content.styled(keys, "$text-accent")),
        (cut if most > 2 else Content(""),),
    ):
        words = Content(f" {LINE}{LINE} ").join([side for side in shown if side.plain])
        room = most - words.cell_length + 1
        if words.plain and room >= 1:
            return Content.assemble(left, f"{LINE * room} ", words, end)
    return Content.assemble(left.rstrip(), end).truncate(width, ellipsis=True)
