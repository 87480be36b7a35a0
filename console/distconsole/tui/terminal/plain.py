"""Characters that a terminal has, in place of those that it has not: on every line that is drawn, whoever wrote it."""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from distconsole.tui.theme.glyphs import (
    ASCII,
    ASCII_CHARACTERS,
    LINUX_CHARACTERS,
    UNICODE,
    Glyphs,
    glyphs,
)

DOTS = range(0x2800, 0x2900)


class PlainCharacters(LineFilter):
    """Draws with what the Linux console has, or with ASCII, where there is no more; each cell stays a cell."""

    def __init__(self) -> None:
        found = glyphs()
        super().__init__(found is not UNICODE)
        self._glyphs = found

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return ``segments`` with characters that the terminal has."""
        return [
            segment if segment.text.isascii() else _plain_segment(segment, self._glyphs)
            for segment in segments
        ]


def _plain_segment(segment: Segment, shown: Glyphs) -> Segment:
    return Segment(plain_text(segment.text, shown), segment.style, segment.control)


@lru_cache(maxsize=4096)
def plain_text(text: str, shown: Glyphs) -> str:
    """Return ``text`` in characters of ``shown``; in ASCII what has no likeness is a question mark."""
    if shown is not ASCII:
        return text.translate(LINUX_CHARACTERS | dict.fromkeys(DOTS, "·"))
    known = text.translate(ASCII_CHARACTERS | dict.fromkeys(DOTS, "."))
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in known)
