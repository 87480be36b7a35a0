"""Shares and levels as short bars of text, distinct in shape as well as in colour."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rich.text import Text
from textual.content import Content

from distconsole.tui.theme.glyphs import glyphs


def level_bar(percent: float | None, width: int) -> Text:
    """Return a bar filled to ``percent``, to half a cell; nothing if unknown. Bars of two rows do not touch."""
    if percent is None or math.isnan(percent):
        return Text(" " * width)
    halves = round(max(0.0, min(1.0, percent / 100)) * width * 2)
    filled = "━" * (halves // 2) + "╸" * (halves % 2)
    return Text.assemble((filled, "curve"), ("─" * (width - len(filled)), "frame"))


HEADROOM = 1.3
"""The scale of a sparkline reaches this many times its highest value: a steady one is no solid block."""


def spark_text(values: Sequence[float | None], cells: int, highest: float | None = None) -> str:
    """Return ``values``, the newest last, as levels from 0 to ``highest``, else to above their own, in ``cells``; None is blank."""
    levels = glyphs().levels
    known = [value for value in values if value is not None and math.isfinite(value)]
    highest = HEADROOM * max(known, default=0.0) if highest is None else highest
    if cells < 1 or not values:
        return " " * max(0, cells)
    each = max(1, math.ceil(len(values) / cells))
    text = ""
    for end in range(len(values), 0, -each):
        part = [v for v in values[max(0, end - each) : end] if v is not None and math.isfinite(v)]
        if not part:
            text = " " + text
            continue
        share = max(part) / highest if highest > 0 else 0.0
        text = levels[max(1, min(len(levels) - 1, round(share * (len(levels) - 1))))] + text
    return text.rjust(cells)


PARTS = (
    ("data", "░", "data"),
    ("forward", "▒", "forward"),
    ("backward", "▓", "backward"),
    ("optimizer", "█", "optimizer"),
)
"""The parts of a step in order, with shade and colour."""
REST = ("rest", "·", "faint")
"""The rest besides the parts."""
WAITS = ("waits", "─", "frame")
"""The rank's wait for others, if it reports one."""


class Phase(NamedTuple):
    """A phase before training: its shade and colour, the rank's activity until then, and its end."""

    name: str
    shade: str
    style: str
    doing: str
    reached: str


PHASES = (
    Phase("interpreter", "░", "faint", "python", "python started"),
    Phase("import_torch", "▒", "forward", "importing torch", "torch imported"),
    Phase("init_process_group", "▓", "backward", "waiting for the group", "group formed"),
    Phase("first_step", "█", "optimizer", "first step", "first step"),
)


def parts_bar(
    parts: Sequence[float | None],
    whole: float | None,
    width: int,
    longest: float | None = None,
    waits: Sequence[float] | None = None,
    waited: float | None = None,
) -> Text:
    """Return ``parts`` of a step of ``whole`` milliseconds as one stacked bar; the rest is dots.

    Args:
        parts: Milliseconds, as ``PARTS``.
        longest: Milliseconds of all of ``width``, so that bars of several ranks have one scale; ``whole`` if None.
        waits: The wait for other ranks in each part; these end the bar, as a line for ``waited`` milliseconds.
    """
    text = Text()
    if waits is not None:
        parts = [part and max(0.0, part - wait) for part, wait in zip(parts, waits, strict=True)]
    parts = [part if part is not None and math.isfinite(part) else None for part in parts]
    if whole is None or not 0 < whole < math.inf or all(part is None for part in parts):
        return Text(" " * width)
    longest = max(whole, longest or whole)
    used = 0
    total = 0.0
    for part, (_, shade, meaning) in zip(parts, PARTS, strict=True):
        total += part or 0.0
        end = round(width * max(0.0, min(1.0, total / longest)))
        text.append(shade * max(0, end - used), style=meaning)
        used = max(used, end)
    end = round(width * (whole / longest))
    line = 0
    if waits is not None and waited is not None and math.isfinite(waited):
        line = min(end - used, round(width * max(0.0, min(1.0, waited / longest))))
    text.append(REST[1] * (end - used - line), style=REST[2])
    text.append(WAITS[1] * line, style=WAITS[2])
    text.append(" " * (width - text.cell_len))
    return text


def parts_legend(*, waits: bool = False) -> Content:
    shown = [
        Content.styled(f"{shade} {name}", f"$phase-{meaning}") for name, shade, meaning in PARTS
    ]
    shown += [Content(f"{WAITS[1]} {WAITS[0]}")] if waits else []
    return Content("  ").join(shown)


def phases_bar(
    reached: Mapping[str, float], elapsed: float | None, longest: float, width: int
) -> Text:
    """Return a rank's phases until its first step as one bar, with the present phase and its age in words.

    Args:
        reached: Phase -> seconds since the rank was started.
        elapsed: Seconds since it was started; None if it was not.
        longest: Seconds of all of ``width``.
        width: Cells of the bar.
    """
    text = Text()
    if elapsed is None:
        return text.append("not started yet", style="faint")
    last = max((place for place, phase in enumerate(PHASES) if phase.name in reached), default=-1)
    used, before = 0, 0.0
    for place, phase in enumerate(PHASES[: last + 2]):
        until = max(before, elapsed if place > last else reached.get(phase.name, before))
        end = round(min(1.0, until / longest) * width) if longest > 0 else 0
        text.append(phase.shade * max(0, end - used), style=phase.style)
        used, before = max(used, end), until
    text.append(" " * (width - used + 1))
    if last + 1 == len(PHASES):
        return text.append(f"trains since {before:.0f} s", style="good")
    since = max((reached[phase.name] for phase in PHASES if phase.name in reached), default=0.0)
    return text.append(f"{PHASES[last + 1].doing} {max(0.0, elapsed - since):.0f} s")
