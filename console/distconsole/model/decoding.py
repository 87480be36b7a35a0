"""Lets threads decode into the same types.

msgspec prepares a type at its first use, in Python code, so that other threads
run in between; one that uses the type then finds half of it and crashes the process (seen with 0.22.0).
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

T = TypeVar("T")

_lock = threading.Lock()
_known: set[object] = set()


def threadsafe(kind: T) -> T:
    """Return a type that may now be decoded into on any thread; every type given to msgspec goes through here."""
    if kind not in _known:
        with _lock:
            msgspec.json.Decoder(kind)
            _known.add(kind)
    return kind
