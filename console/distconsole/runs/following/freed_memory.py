"""Has the C library give back the memory that a flood of lines took: a trick on the allocator.

glibc keeps freed memory for later requests, in an arena for each of several threads, and keeps more the larger
the requests were. After 600,000 lines a console held 74 MB without this, and 44 MB with it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
"""mallopt(3). One that is set no longer grows by itself."""

SETTINGS = ((M_ARENA_MAX, 1), (M_TRIM_THRESHOLD, 128 << 10), (M_MMAP_THRESHOLD, 64 << 10))
"""The agent has the same by its environment (``server/bridge.py``)."""


@cache
def return_freed_memory() -> None:
    """Set it for this process, if its C library is glibc."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for name, value in SETTINGS:
            mallopt(name, value)
