"""Moments and spans of time as people write and read them.

A node, a damaged record or a wrong clock may hold any number: an impossible one is shown as unknown.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

DAY_SECONDS = 86400
TOO_FAR_SECONDS = 1e12
"""30,000 years: nothing that is further away is a time."""

UNKNOWN = "?"
_NUMBER = r"(\d+(?:\.\d+)?)"
_SPAN = re.compile(rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?:in)?)?(?:{_NUMBER}s?)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")


def is_time(seconds: object) -> bool:
    """Return True for a number that may be a moment, in UNIX seconds, or a span between two."""
    if not isinstance(seconds, (int, float)):  # half the time of ``int | float``
        return False
    return -TOO_FAR_SECONDS < seconds < TOO_FAR_SECONDS  # not so for NaN


def clock_text(t: float, *, tenths: bool = False) -> str:
    """Return UNIX seconds as the local time of day, such as ``14:05:09``, or ``??:??:??``."""
    if not is_time(t):
        return "??:??:??.?" if tenths else "??:??:??"
    clock = time.strftime("%H:%M:%S", time.localtime(t))
    return f"{clock}.{int(t * 10) % 10}" if tenths else clock


def date_text(t: float, form: str = "%Y-%m-%d %H:%M") -> str:
    """Return UNIX seconds as a local date and time of ``form`` (strftime's), or ``?``."""
    return time.strftime(form, time.localtime(t)) if is_time(t) else UNKNOWN


def utc_text(t: float) -> str:
    """Return UNIX seconds as ``2026-11-22 14:05:09 UTC``, for a reader in any time zone, or ``?``."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(t)) if is_time(t) else UNKNOWN


def duration_text(seconds: float | None) -> str:
    """Return how long something took: ``1 h 2 min``, ``3 min 20 s``, ``4.2 s``; nothing for None."""
    if seconds is None:
        return ""
    if not is_time(seconds):
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def span_text(seconds: float) -> str:
    """Return a duration for sentences that are watched: ``42 s``, ``12 min``, ``3 h 20 min``, ``2.5 days``."""
    if not is_time(seconds):
        return UNKNOWN
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if seconds < DAY_SECONDS / 2 and minutes % 60:
        return f"{minutes // 60} h {minutes % 60} min"
    if seconds < 2 * DAY_SECONDS:
        return f"{minutes / 60:.0f} h"
    return f"{seconds / DAY_SECONDS:.1f} days"


def ms_text(milliseconds: float) -> str:
    """Return how long a part of a step takes: ``0.38 ms``, ``151 ms``, ``4.71 s``."""
    if milliseconds < 999.5:
        return f"{milliseconds:.3g} ms"
    return f"{milliseconds / 1000:.3g} s"


def unusual_text(milliseconds: float, of: str, usual: float) -> str:
    """Return ``14 ms {of} where 10 ms is usual``."""
    return f"{ms_text(milliseconds)} {of} where {ms_text(usual)} is usual"


def age_text(seconds: float) -> str:
    """Return the age of a thing in a finding, in the largest unit of which it has two.

    ``40 s``, ``119 s``, ``3 h``, ``12 days``: two units separate a new process from an old one.
    """
    if not is_time(seconds):
        return UNKNOWN
    for unit, length in (("days", DAY_SECONDS), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def parse_since(text: str, now: float) -> float:
    """Return UNIX seconds: a span before ``now`` (``90s``, ``10m``, ``1h30m``), a time of day
    (``14:05``, the last one there was), a date as ``2026-11-22T14:05``, or UNIX seconds.

    Raises ValueError if it is none of these.
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
    """Return the time of day ``text`` (local) on the day of ``near`` (UNIX seconds); None if it is none."""
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
