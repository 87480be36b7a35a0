"""Tracks keys that wait for their answer, so that gathering threads leave the processor to the screen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from distconsole.tui.view_models.hosts import Clock

LONGEST_SECONDS = 0.1
"""A key without an effect, or with a long one, delays others no longer."""


class KeyWaitsError(Exception):
    """A key has come while a picture was made that can wait."""


class InputPriority:
    """Lets a key's answer go before other work, which waits at most half of the time."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._answered = threading.Event()
        self._answered.set()
        self._since = 0.0
        self._not_before = 0.0
        self._taken = False
        self._drawing_waits = False

    @property
    def awaited(self) -> bool:
        """True while a key waits for its answer, for at most ``LONGEST_SECONDS``."""
        if self._answered.is_set():
            return False
        if self._clock() < self._since + LONGEST_SECONDS:
            return True
        self.answer()
        return False

    def ask(self) -> None:
        """Record a key, from any thread; one soon after another gets no priority."""
        now = self._clock()
        if now >= self._not_before and self._answered.is_set():
            self._since = now
            self._taken = False
            self._answered.clear()

    def take(self) -> None:
        """Mark the key as handled: the next drawing may show its answer."""
        self._taken = True

    def drawn(self) -> None:
        """Mark a drawing: it is the answer if the key was handled."""
        if self._taken:
            self.answer()

    def answer(self) -> None:
        """Mark the key as answered on the screen."""
        if not self._answered.is_set():
            now = self._clock()
            self._not_before = now + min(now - self._since, LONGEST_SECONDS)
            self._answered.set()

    def yield_to_input(self) -> None:
        """Wait while a key awaits its answer; for threads that hold no lock."""
        if not self._answered.is_set() and self.awaited:
            self._answered.wait(max(0.0, self._since + LONGEST_SECONDS - self._clock()))

    @contextmanager
    def drawing(self, *, can_wait: bool) -> Iterator[None]:
        """Draw within; a drawing that ``can_wait`` is given up if ``give_way`` finds a key."""
        self._drawing_waits = can_wait
        try:
            yield
        finally:
            self._drawing_waits = False

    def give_way(self) -> None:
        """Raise ``KeyWaitsError`` between the parts of a long drawing if a key waits and the drawing can."""
        if self._drawing_waits and self.awaited:
            raise KeyWaitsError
