"""Fixed words: a line or a few, drawn again only when they changed."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.text import Text
from textual.content import Content
from textual.widgets import Static

from distconsole.tui.theme.glyphs import glyphs


class Words(Static):
    """Text that costs nothing while unchanged; brackets in it have no meaning."""

    def __init__(self, content: Text | str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(content, id=id, markup=False)
        self._unmarked: Text | None = None

    def mark(self, words: str = "", *, case: bool = False) -> None:
        """Mark each match of ``words``, in place of earlier marks, until another text is shown."""
        if not isinstance(self.content, Text):
            return
        plain = self._unmarked or self.content
        marked = plain.copy()
        if words:
            pattern = re.compile(re.escape(words), 0 if case else re.IGNORECASE)
            marked.highlight_regex(pattern, "reverse")
        self.update(marked, layout=False)
        self._unmarked = plain

    def show(self, content: Content | Text | str) -> None:
        if self._unmarked is not None:
            if content == self._unmarked:
                return
            self._unmarked = None
            self.update(content)
            return
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
        # Textual counts one of the changes before it idles, and takes its size for all.
        self._layout_updates += 1


class Line(Words):
    """One line, cut at its end."""

    DEFAULT_CSS = "Line { height: 1; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }"


class Verdict(Words):
    """A verdict in one sentence, with the colour of its tone at the edge; its subject stands at the right."""

    DEFAULT_CSS = "Verdict { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }"

    def say(self, tone: str, mark: str, sentence: str, about: str = "") -> None:
        """Show ``sentence``, and the parts of ``about`` that fit.

        Args:
            tone: ``good``, ``note``, ``warn`` or ``bad``.
            mark: Its shape, visible without colours.
        """
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        line.append(f"{glyphs().edge}{mark} {sentence}", style=tone)
        room = self.app.size.width - line.cell_len - 4
        words = whole_parts(about, room)
        if words:
            line.append(" " * (room - cell_len(words) + 3)).append(words, style="faint")
        self.show(line)


PART_END = "  "
"""Separator of parts of words; a list is one part: cut, it would name too few."""


def whole_parts(words: str, room: int) -> str:
    """Return the first parts of ``words`` that fit into ``room`` cells whole."""
    while words and cell_len(words) > room:
        words = words[: max(0, words.rfind(PART_END))]
    return words
