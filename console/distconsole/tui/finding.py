"""Finding words on the screen: rows of a table, or lines of a text; lines of a run are found by their own view."""

from __future__ import annotations

from textual.geometry import Region
from textual.widget import Widget
from textual.widgets import RichLog

from distconsole.errors import ConsoleError
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Words


class Finder:
    """What is looked for, and where it was found last."""

    def __init__(self) -> None:
        self._words = ""
        self._panel: Widget | None = None
        self._place = -1
        self._began: int | None = None
        """Where the reader was when the words began to be typed."""

    def leave(self) -> None:
        """Take what was typed for given up, or done."""
        self._began = None

    def find(self, panel: Widget, words: str, step: int = 1, *, typing: bool = False) -> str:
        """Go to the next line of ``panel`` that has ``words``, those of before if empty; or, with -1, to the one before.

        While they are typed each change looks anew from the same place. Returns what is said; raises
        ConsoleError if there is none.
        """
        self._words = words or self._words
        if not self._words:
            raise ConsoleError("nothing is searched", "/ finds")
        if panel is not self._panel:
            self._panel, self._place = panel, -1
            self.leave()
        at = panel.cursor if isinstance(panel, LineTable) else self._place
        if self._began is not None and words:
            at = self._began
        self._began = at if typing else None
        at -= bool(words)  # it may stand there already
        found = [place for place, line in enumerate(_lines(panel)) if _has(line, self._words)]
        if not found:
            raise ConsoleError(f"nothing here has {self._words!r}", "")
        onward = [place for place in found if (place - at) * step > 0]
        self._place = (onward or found)[0 if step > 0 else -1]
        if isinstance(panel, LineTable):
            panel.action_move(self._place - panel.cursor)
        else:
            panel.scroll_to(y=self._place, animate=False)
        return f"{self._words!r}: {found.index(self._place) + 1} of {len(found)}"


def _lines(panel: Widget) -> list[str]:
    if isinstance(panel, LineTable):
        return [panel.words_of(row) for row in panel.rows]
    if isinstance(panel, RichLog):
        return [line.text for line in panel.lines]
    return [
        line.text
        for words in panel.query(Words)
        for line in words.render_lines(Region(0, 0, *words.size))
    ]


def _has(line: str, words: str) -> bool:
    """Whether ``line`` has ``words``; a capital letter counts."""
    return words in (line if words != words.lower() else line.lower())
