"""Words that stay where they are: a line or a few, drawn again only when they changed."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.widgets import Static

from distconsole.tui.theme.glyphs import glyphs


class Words(Static):
    """Text that costs nothing while it stays the same; brackets in it mean nothing."""

    def __init__(self, content: Text | str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(content, id=id, markup=False)

    def show(self, content: Content | Text | str) -> None:
        before = self.content
        same = content == before
        if isinstance(content, Content) and isinstance(before, Content):
            same = content.is_same(before)  # colours count, too
        if same:
            return
        lines = str(content).count("\n") == str(before).count("\n")
        fixed = self.styles.height is not None and not self.styles.height.is_auto
        if fixed and lines:
            self.update(content, layout=False)
            return
        self.update(content)
        # Textual counts one of the changes before it idles, and takes the size of the first for that of all.
        self._layout_updates += 1

    def recolour(self) -> None:
        self.update(self.content, layout=False)


class Line(Words):
    """One line; what there is no room for is cut."""

    DEFAULT_CSS = "Line { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"


class Verdict(Words):
    """How something goes, in one sentence, with the colour of its tone at the edge; what it is about stands at the right."""

    DEFAULT_CSS = "Verdict { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }"

    def say(self, tone: str, mark: str, sentence: str, about: str = "") -> None:
        """Show ``sentence``; ``about`` where there is room, cut at its end.

        Args:
            tone: ``good``, ``note``, ``warn`` or ``bad``.
            mark: Its shape, for who sees no colours.
        """
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        line.append(f"{glyphs().edge}{mark} {sentence}", style=tone)
        room = self.app.size.width - line.cell_len - 4
        if about and room >= LEAST_ABOUT:
            words = Text(about, style="faint")
            words.truncate(room, overflow="ellipsis")
            line.append(" " * (room - words.cell_len + 3)).append_text(words)
        self.show(line)


LEAST_ABOUT = 12
"""Fewer cells of what a verdict is about say nothing."""
