"""The last guard before the terminal: whatever a widget draws, nothing in it is obeyed.

Texts from nodes are cleaned where they come in; this is for the one that was forgotten, and for names of
the operator's own. It takes out what has no width, so that no line changes its length.
"""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, overrides, isolates
    "\u2028\u2029\ufeff\U000e0000-\U000e007f]"  # line separators, BOM, invisible tags
)
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of a surrogate pair: no terminal's encoding has them."""


class Harmless(LineFilter):
    """Takes out of segments what a terminal would obey."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return ``segments``, which are mostly harmless and then the same."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(_HALVES.sub("?", _OBEYED.sub("", text)), style, control)
            for text, style, control in segments
        ]
