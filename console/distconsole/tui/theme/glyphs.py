"""Characters of pictures, and likenesses for the Linux console's font and for ASCII."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of a picture.

    Attributes:
        levels: The scale of a sparkline, from nothing to full.
        braille: Whether braille dots exist; else half blocks stand for them.
        grid: A line of a plot's grid.
        zero: A curve that lies on the axis.
        border: Textual's name of the border of a panel.
        edge: The left end of a verdict.
    """

    levels: str
    braille: bool
    grid: str
    zero: str
    border: str
    edge: str


UNICODE = Glyphs(" ▁▂▃▄▅▆▇", braille=True, grid="┈", zero="━", border="round", edge="▌")
LINUX_CONSOLE = Glyphs(" ▄█", braille=False, grid="·", zero="═", border="solid", edge="▌")
"""Its font has 256 or 512 characters: no braille, no eighths, no round corners."""
ASCII = Glyphs(" .:-=+*#", braille=False, grid=".", zero="=", border="solid", edge="|")

_LINUX = dict(
    zip(
        "╭╮╰╯━╸┄┈╷╲▁▂▃▅▆▇▏▎▍▋▊▉‖…–\u276f✗✓●◇▴▸▾▽◂↻⚠\u2139\u00d7",
        "┌┐└┘═─-·│\\__▄▄██│▌▌▌██║~->x√•◆▲►▼▼◄↔!ix",
        strict=True,
    )
)
_ASCII = dict(
    zip(
        "┌┐└┘─│┤├┬┴┼═║▀▄█▌▐░▒▓■▲▼◆▶►◄◀•·√→←↑↓↔≥µ°",
        "++++-||++++=H\"_#||:+%#^v*>><<*.v><^v!>u'",
        strict=True,
    )
)
LINUX_CHARACTERS = str.maketrans(_LINUX)
"""Characters that the Linux console's font (code page 437) lacks, and their replacements."""
ASCII_CHARACTERS = str.maketrans(
    _ASCII | {sign: _ASCII.get(plain, plain) for sign, plain in _LINUX.items()}
)
DOTS = range(0x2800, 0x2900)
"""The braille patterns."""
ASCII_TERMINALS = ("vt100", "vt102", "vt220", "dumb")


def glyphs() -> Glyphs:
    if is_ascii():
        return ASCII
    return LINUX_CONSOLE if os.environ.get("TERM") == "linux" else UNICODE


def is_ascii() -> bool:
    """True if terminal or locale have no characters beyond ASCII."""
    if os.environ.get("TERM") in ASCII_TERMINALS:
        return True
    chosen = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG", "")
    if not os.environ.get("LC_ALL") and os.environ.get("LC_CTYPE") == "C.UTF-8":
        chosen = os.environ.get("LANG") or chosen  # Python has put it there where LANG is C
    return chosen in ("C", "POSIX")


class PlainCharacters(LineFilter):
    """Replaces characters that the Linux console, or ASCII, lacks; each cell stays a cell."""

    def __init__(self) -> None:
        found = glyphs()
        super().__init__(found is not UNICODE)
        self._glyphs = found

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [
            Segment(text if text.isascii() else plain_text(text, self._glyphs), style, control)
            for text, style, control in segments
        ]


@lru_cache(maxsize=4096)
def plain_text(text: str, shown: Glyphs) -> str:
    """Return ``text`` in characters of ``shown``; in ASCII a question mark replaces those without a likeness."""
    if shown is not ASCII:
        return text.translate(LINUX_CHARACTERS | dict.fromkeys(DOTS, "·"))
    known = text.translate(ASCII_CHARACTERS | dict.fromkeys(DOTS, "."))
    return "".join(each if each.isascii() else "?" * cell_len(each) for each in known)
