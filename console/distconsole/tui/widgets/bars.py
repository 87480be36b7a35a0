"""Shares and levels as short bars of text, told apart by shape as well as by colour."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

EIGHTHS = " ▏▎▍▌▋▊▉█"


def level_bar(percent: float | None, width: int, *, hot: float = 101.0) -> Text:
    """Return a bar filled to ``percent``; nothing if unknown; alarming from ``hot`` on."""
    if percent is None:
        return Text(" " * width)
    share = max(0.0, min(1.0, percent / 100))
    whole, rest = divmod(round(share * width * 8), 8)
    bar = "█" * whole + (EIGHTHS[rest] if rest else "")
    meaning = "bad" if percent >= hot else "good" if percent >= 50 else "note"
    return Text(bar.ljust(width, "·"), style=meaning)


PARTS = (
    ("data", "░", "warn"),
    ("forward", "▒", "cyan"),
    ("backward", "▓", "blue"),
    ("optimizer", "█", "magenta"),
)
"""The parts of a step in order, each with its shade and colour."""


def parts_bar(parts: Sequence[float | None], whole: float | None, width: int) -> Text:
    """Return the parts of a step as one stacked bar; what they do not explain stays a dot.

    Args:
        parts: Milliseconds of data wait, forward, backward and optimizer; None where unknown.
        whole: Milliseconds of the step.
        width: Cells of the whole step.
    """
    text = Text()
    if not whole or all(part is None for part in parts):
        return Text(" " * width)
    used = 0
    total = 0.0
    for part, (_, shade, meaning) in zip(parts, PARTS, strict=True):
        total += part or 0.0
        end = min(width, round(total / whole * width))
        text.append(shade * max(0, end - used), style=meaning)
        used = max(used, end)
    text.append("·" * (width - used), style="faint")
    return text
