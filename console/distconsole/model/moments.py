"""Moments and spans of time as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

DAY_SECONDS = 86400
_SPAN = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+(?:\.\d+)?)s?)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")


def parse_since(text: str, now: float) -> float:
    """Return UNIX seconds: a span before ``now`` (``90s``, ``10m``, ``1h30m``), a time of day
    (``14:05``, the last one there was), a date as ``2026-11-22T14:05``, or UNIX seconds.

    Raises:
        ValueError: if it is none of these.
    """
    clock = time_of_day(text, now)
    if clock is not None:
        return clock if clock <= now else clock - DAY_SECONDS
    span = span_seconds(text)
    if span is not None and not re.fullmatch(r"\d{9,}(\.\d+)?", text):
        return now - span
    try:
        return float(text) if span is not None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: 90s, 10m, 1h30m, 14:05, 2026-11-22T14:05 or UNIX seconds"
        ) from None


def span_seconds(text: str) -> float | None:
    """Return the seconds of ``1h30m``, ``90s`` or ``90``; None if it is no span."""
    found = _SPAN.fullmatch(text)
    if not text or found is None:
        return None
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return days * DAY_SECONDS + hours * 3600 + minutes * 60 + seconds


def time_of_day(text: str, near: float) -> float | None:
    """Return the time of day ``text`` (local) on the day of ``near``, in UNIX seconds.

    None if it is none, or ``near`` is on no day of the calendar.
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), float(found[3] or 0)
    if hours > 23 or minutes > 59 or seconds >= 60:
        return None
    whole = int(seconds)
    try:
        day = datetime.fromtimestamp(near, UTC).astimezone()
        at = day.replace(hour=hours, minute=minutes, second=whole, microsecond=0)
        return at.timestamp() + seconds - whole
    except (ValueError, OverflowError, OSError):
        return None
