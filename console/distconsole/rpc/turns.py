"""Threads that read from nodes compute one at a time, and whoever computes does it for those that wait, too.

Only one of them can run at a time anyway. One that waits for the interpreter's lock wakes every 5 ms to ask for it
(``sys.setswitchinterval``): a thousand that wait spend two processors on asking. Here they sleep. And a lock that went
from thread to thread would cost each a turn of the scheduler, which a busy machine gives late.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MOST_FOR_OTHERS = 64
"""So much a thread computes for others before one of them goes on: its own node has news, too."""


class _Work(Generic[T]):
    """What one thread wants computed, and what came of it."""

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute = compute
        self._value: T
        self._error: BaseException | None = None
        self.goes_on = False
        """Whether its thread is woken to compute, and not because it is done."""
        self.awake = threading.Lock()
        self.awake.acquire()

    def do(self) -> None:
        try:
            self._value = self._compute()
        except BaseException as error:  # noqa: BLE001 - raised on the thread whose it is
            self._error = error

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._value


class Turns:
    """May be used from any thread; what is computed waits for nothing, and asks for no turn itself."""

    def __init__(self) -> None:
        self._taken = threading.Lock()
        self._waiting: deque[_Work[object]] = deque()

    def take(self, compute: Callable[[], T]) -> T:
        """Return what ``compute`` does, or raise what it raises; it may run on another thread."""
        work: _Work[T] = _Work(compute)
        if self._taken.acquire(blocking=False):
            work.do()
            self._compute_for_others()
            return work.outcome()
        self._waiting.append(work)  # type: ignore[arg-type]
        if self._taken.acquire(blocking=False):  # it was given back meanwhile
            self._compute_for_others()
        work.awake.acquire()
        if work.goes_on:
            work.do()
            self._compute_for_others()
        return work.outcome()

    def _compute_for_others(self) -> None:
        """Compute what waits, holding the turn, and give it back or on."""
        while True:
            for _ in range(MOST_FOR_OTHERS):
                if not self._waiting:
                    break
                work = self._waiting.popleft()
                work.do()
                work.awake.release()
            if self._waiting:
                work = self._waiting.popleft()
                work.goes_on = True
                work.awake.release()
                return
            self._taken.release()
            # One that came after the last look, and found the turn taken, has nobody else.
            if not self._waiting or not self._taken.acquire(blocking=False):
                return


TURNS = Turns()
"""That of all links of this program."""
