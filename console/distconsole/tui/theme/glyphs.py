"""The characters that pictures are drawn with, as data: those of Unicode, and those that the Linux console's font has."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What a picture is made of.

    Attributes:
        levels: The scale of a sparkline, from nothing to full.
        braille: Whether there are braille dots; else half blocks stand for them.
        grid: A line of a plot's grid.
        zero: A curve that lies on the axis.
        border: Textual's name of the border of a panel.
        edge: What stands at the left of a verdict.
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


def glyphs() -> Glyphs:
    """Return what this terminal can show."""
    return LINUX_CONSOLE if os.environ.get("TERM") == "linux" else UNICODE
