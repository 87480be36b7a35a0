"""Sizes, processes and long lists as findings say them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distconsole.checks.facts.node import Who
from distconsole.model.time_text import age_text

MAX_LISTED = 8
KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4


def list_some(lines: Sequence[str], most: int = MAX_LISTED) -> str:
    """Return the first lines, and in another line how many more there are."""
    more = len(lines) - most
    return "\n".join([*lines[:most], *([f"and {more} more"] if more > 0 else [])])


def size(count: int) -> str:
    """Return bytes as text: ``64 MiB``, ``1.5 GiB``."""
    if count >= TIB:
        return f"{count / TIB:.1f} TiB"
    if count >= GIB:
        return f"{count / GIB:.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= MIB else f"{count / KIB:.0f} KiB"


def who(process: Who) -> str:
    """Return a process as text: ``python3 (pid 4242, uid 1001, 3 h)``."""
    known = [] if process.pid is None else [f"pid {process.pid}"]
    known += [] if process.uid < 0 else [f"uid {process.uid}"]
    known += [] if process.age_seconds is None else [age_text(process.age_seconds)]
    return f"{process.name or 'a process'} ({', '.join(known)})"


def numbers(values: Iterable[int]) -> str:
    """Return numbers as text: ``0, 1, 5``."""
    return ", ".join(map(str, values))
