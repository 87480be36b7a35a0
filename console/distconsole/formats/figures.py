"""Figures and lists as people read them: as text, and as colours."""

from __future__ import annotations

LONG = 1e9
"""A figure from here on is said with its power of ten: it need not fit a column otherwise."""
CIVIDIS = (
    *((0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115)),
    *((138, 134, 120), (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56)),
)
"""Anchors of the colour map cividis (Nuñez, Anderton, Renslow 2018), which the colour-blind read alike."""


def bytes_text(count: float | None) -> str:
    """Return a number of bytes such as ``1.5G`` (powers of 1024), or nothing if unknown."""
    if count is None:
        return ""
    for unit in ("", "K", "M", "G", "T"):
        if abs(count) < 1024 or unit == "T":
            return f"{count:.0f}{unit}" if unit in ("", "K") else f"{count:.1f}{unit}"
        count /= 1024
    raise AssertionError


def number_text(value: float | None, unit: str = "") -> str:
    """Return a figure with three significant digits, or nothing if unknown."""
    if value is None:
        return ""
    if 0 < abs(value) < 0.01 or abs(value) >= LONG:
        return f"{value:.3g}{unit}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{unit}"
