"""Removes control characters from names, typed lines, and widgets' output.

Texts from nodes are cleaned on arrival; ``Sanitizer``, the last guard before the terminal, is for
forgotten ones and for the operator's own names. Other content is left as it is.
"""

from __future__ import annotations

import re

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from distconsole.ssh.plain import plain_text

_OBEYED = re.compile(
    "[\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks, overrides, isolates
    "\u2028\u2029\ufeff\U000e0000-\U000e007f]"  # line separators, BOM, invisible tags
)
_HALVES = re.compile("[\ud800-\udfff]")
"""Halves of a surrogate pair: no terminal's encoding has them."""


def printable_name(name: str) -> str:
    """Return a node's or a script's name with ``?`` for each unprintable character."""
    return "".join(each if each.isprintable() else "?" for each in name)


def one_line(text: str) -> str:
    """Return ``text`` as one line without control characters; blanks replace tabs and line ends."""
    return plain_text(text).replace("\t", " ")


class Sanitizer(LineFilter):
    """Removes control characters from segments: they have no width, so that no line changes its length."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return ``segments``: mostly harmless, and then the same."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(_HALVES.sub("?", _OBEYED.sub("", text)), style, control)
            for text, style, control in segments
        ]
