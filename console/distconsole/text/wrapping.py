"""Prose on a terminal, broken between words. What is to be pasted is left to the terminal, which breaks it without a trace."""

from __future__ import annotations

import re

from distconsole.text.output import Output

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEAST_COLUMNS = 40
"""A terminal that is narrower breaks its lines itself."""


def tell(output: Output, line: str, indent: int = 0) -> None:
    """Print a line of prose as data; in a pipe it stays one.

    Args:
        output: Where to.
        line: May have colours.
        indent: Of all lines but the first.
    """
    width = output.width
    if width is None or width < LEAST_COLUMNS:
        output.data(line)
        return
    for each in wrapped(line, width, indent):
        output.data(each)


def wrapped(line: str, width: int, indent: int = 0) -> list[str]:
    """Return ``line`` as lines of at most ``width`` columns where its words allow it; colours take none."""
    lead = line[: len(line) - len(line.lstrip(" "))]
    lines, held, length = [], lead, len(lead)
    for word in line[len(lead) :].split(" "):
        size = len(COLOUR.sub("", word))
        fresh = not COLOUR.sub("", held).strip()
        if not fresh and length + 1 + size > width:
            lines.append(held)
            held, length, fresh = " " * indent, indent, True
        held += word if fresh else f" {word}"
        length += size if fresh else size + 1
    return [*lines, held]
