"""Parts of a heat map: coloured half blocks or shades, the times below, the scale beside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from distconsole.formats.figures import CIVIDIS, number_text
from distconsole.model.time_text import clock_text
from distconsole.tui.view_models.heat import LEVELS, Heat, Scale

SHADES = "·░▒▓█"
"""The scale without colours; a space is unknown."""
NOTE = "blank: no data  !: no number"
TICK_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
TICK_CELLS = 14
"""Cells between two times below the map."""


def scale_text(scale: Scale, room: int, *, shaped: bool) -> Text:
    """Return the scale of colours, or of shades if ``shaped``, and the look of unknown values if there is room."""
    quantity = scale.quantity
    low, high = (
        number_text(quantity.value(end), quantity.unit) for end in (scale.low, scale.high)
    )
    text = Text().append(f"{low} ", style="note")
    if shaped:
        text.append(SHADES)
    else:
        for level in range(0, LEVELS, 2):
            text.append("█", Style(color=ramp(level)))
    text.append(f" {high}", style="note")
    for words, style in ((" worst", "note"), (f"  {NOTE}", "faint")):
        if text.cell_len + len(words) <= room:
            text.append(words, style=style)
    return text


def times_text(heat: Heat, edges: Sequence[int]) -> str:
    """Return round times below the cells at whose ``edges`` they are, between the first time and the end."""
    end = clock_text(heat.time_of(heat.count))
    least = TICK_CELLS * heat.count * heat.cell_seconds / max(1, edges[-1])
    each = next((each for each in TICK_SECONDS if each >= least), TICK_SECONDS[-1])
    line, last = clock_text(heat.time_of(0)), edges[-1] - len(end)
    if last <= len(line):
        return line
    for cell, at in enumerate(edges[:-1]):
        tick = heat.time_of(cell) // each
        passed = tick != heat.time_of(cell - 1) // each
        if passed and len(line) + 2 <= at <= last - len(end) - 2:
            line = line.ljust(at) + clock_text(tick * each)
    return line.ljust(last) + end


def row_name(labels: Sequence[str]) -> str:
    """Return the name of the rows of one line: ``2-3 node1`` of ``2 node1`` and ``3 node1``, else the first one's."""
    if len(labels) == 2:
        (rank, _, host), (other, _, its_host) = (label.partition(" ") for label in labels)
        if host == its_host and rank.isdecimal() and other.isdecimal():
            return f"{rank}-{other} {host}"
    return labels[0]


def shade(level: int) -> str:
    return " " if level < 0 else SHADES[min(len(SHADES) - 1, level * len(SHADES) // LEVELS)]


@cache
def block(base: Style, upper: int, lower: int, width: int) -> Segment:
    """Return a moment of two levels: the upper half in one colour, the lower in another."""
    if upper == lower:
        style = base + Style(color=ramp(upper)) if upper >= 0 else base
        return Segment(("█" if upper >= 0 else " ") * width, style)
    if upper < 0:
        return Segment("▄" * width, base + Style(color=ramp(lower)))
    if lower < 0:
        return Segment("▀" * width, base + Style(color=ramp(upper)))
    return Segment("▀" * width, base + Style(color=ramp(upper), bgcolor=ramp(lower)))


@cache
def ramp(level: int) -> Color:
    """Return a colour of the scale: from dark blue to yellow, distinct without red or green."""
    place = max(0, min(LEVELS - 1, level)) / (LEVELS - 1) * (len(CIVIDIS) - 1)
    near = min(int(place), len(CIVIDIS) - 2)
    mixed = [a + (b - a) * (place - near) for a, b in zip(*CIVIDIS[near : near + 2], strict=True)]
    return Color.from_rgb(*mixed)
