"""Figures and lists as people read them: as text, and as colours."""

from __future__ import annotations

import math

from distconsole.runs.figures import Figure

LONG = 1e9
"""From here on a figure has a power of ten, to fit a column."""
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


def figure_text(figure: Figure, source: object) -> str:
    """Return a figure of a sample or a rank as tables show it, or nothing if unknown."""
    value = figure.value(source)
    if not isinstance(value, int | float):
        return ""
    if figure.unit in ("B", "B/s"):
        return bytes_text(value)
    return number_text(value, "W" if figure.unit == "W" else "")


def number_text(value: float | None, unit: str = "") -> str:
    """Return a figure with three significant digits, or nothing if unknown."""
    if value is None:
        return ""
    if 0 < abs(value) < 0.01 or abs(value) >= LONG:
        return f"{value:.3g}{unit}"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}{unit}"


LEAST_SPAN = 1e-100
"""Values less apart are one value."""


def nice_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Return about ``wanted`` round values that enclose ``low`` to ``high``."""
    high = max(low, high)
    if high - low <= LEAST_SPAN:
        margin = abs(low) * 0.1 if abs(low) > LEAST_SPAN else 1.0
        low, high = low - margin if low else 0.0, high + margin
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, last + 1)]


def round_seconds(high: float) -> list[float]:
    """Return at most six moments from 0 to ``high`` seconds that a clock has."""
    spans = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
    step: float = next(
        (span for span in spans if high / span <= 5), math.ceil(high / 5 / 86400) * 86400
    )
    return [number * step for number in range(int(high / step) + 1)]


def short_time(seconds: float) -> str:
    """Return a moment of a run such as ``1:05`` or ``2:00:00``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def tick_text(value: float) -> str:
    """Return a round value in its shortest form: ``0.5``, ``2,000``, ``150K``."""
    size = abs(value)
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "K")):
        if max(unit, 1e4) <= size < 1e12:
            return f"{value / unit:.6g}{name}"
    if size >= 1e12 or 0 < size < 1e-4:
        return f"{value:.3g}"
    return f"{value:,.10f}".rstrip("0").rstrip(".")
