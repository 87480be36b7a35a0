"""The hand-over from many links to one consumer that comes at its own pace. It wakes nobody's screen."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

HISTORY = 5000
"""Entries kept between two drains: half a second at ten thousand a second."""

MAX_KEYS = 65536


@dataclass(frozen=True, slots=True)
class Drained(Generic[K, V]):
    """What came since the last drain.

    Attributes:
        latest: The newest value of each key that changed.
        history: Everything appended, oldest first, as far as it was kept.
        dropped: Of it, how many were not kept.
    """

    latest: dict[K, V]
    history: list[V]
    dropped: int


class Mailbox(Generic[K, V]):
    """Bounded and never blocking for those who offer; memory does not grow while nobody drains.

    Args:
        history: Most entries that are kept between two drains.
    """

    def __init__(self, history: int = HISTORY) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._latest: dict[K, V] = {}
        self._history: deque[V] = deque(maxlen=history)
        self._dropped = 0

    def offer(self, key: K, value: V) -> None:
        """Replace the value of ``key``."""
        with self._lock:
            if key in self._latest or len(self._latest) < MAX_KEYS:
                self._latest[key] = value
            else:
                self._dropped += 1
        self._arrived.set()

    def append(self, value: V) -> None:
        """Add to the history; the oldest goes where there is no room."""
        with self._lock:
            self._dropped += len(self._history) == self._history.maxlen
            self._history.append(value)
        self._arrived.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait until something has come since the last drain; False if nothing did in time."""
        return self._arrived.wait(timeout)

    def drain(self) -> Drained[K, V]:
        """Take out everything."""
        with self._lock:
            self._arrived.clear()
            latest, self._latest = self._latest, {}
            history, dropped = list(self._history), self._dropped
            self._history.clear()
            self._dropped = 0
        return Drained(latest, history, dropped)
