"""One thread's events: descriptors, timers and signals in one selector."""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import signal
import time
from typing import Callable

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

LONGEST_WAIT_SECONDS = 60.0

STOPPED_SECONDS = 1.0
"""A wait that takes this much too long: the process was stopped (SIGSTOP, as by ``scontrol suspend``)."""


class Timer:
    """A call that is due once; ``cancel`` may be called at any time, also twice."""

    def __init__(self, due: float, callback: Callable[[], None]) -> None:
        self.due = due
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def run(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Loop:
    """Runs callbacks until ``stop``, in the thread that calls ``run``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._away_seconds = 0.0
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._made = 0
        self._stopped = False
        self._wakeup: tuple[int, int] | None = None
        self._on_signal: dict[int, Callable[[], None]] = {}

    def clock(self) -> float:
        """Return monotonic seconds without those for which the process was stopped: it could hear of no other node."""
        return self._clock() - self._away_seconds

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(events)`` whenever ``fd`` is ready; replaces an earlier watch of it."""
        try:
            self._selector.modify(fd, events, callback)
        except KeyError:
            self._selector.register(fd, events, callback)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``; an unknown one is no error."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fd)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(self.clock() + max(0.0, seconds), callback)
        self._made += 1
        heapq.heappush(self._timers, (timer.due, self._made, timer))
        return timer

    def watch_signals(self, callbacks: dict[int, Callable[[], None]]) -> None:
        """Call a callback in the loop after its signal came; signals that coincide may be merged."""
        read_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wakeup = (read_fd, write_fd)
        self._on_signal = dict(callbacks)
        for number in callbacks:
            signal.signal(
                number, lambda _number, _frame: None
            )  # the wakeup descriptor wakes the loop
            signal.siginterrupt(number, False)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        self.watch(read_fd, READ, self._signalled)

    def run(self) -> None:
        while not self._stopped:
            self.run_once(LONGEST_WAIT_SECONDS)

    def run_once(self, longest_seconds: float) -> None:
        """Wait for an event, at most this long, and run due callbacks."""
        wait_seconds = longest_seconds
        if self._timers:
            wait_seconds = min(longest_seconds, max(0.0, self._timers[0][0] - self.clock()))
        began = self._clock()
        ready = self._selector.select(wait_seconds)
        late_seconds = self._clock() - began - wait_seconds
        if late_seconds > STOPPED_SECONDS:
            self._away_seconds += late_seconds
        for key, events in ready:
            # An earlier callback of this round may have closed this descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data(events)
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2].run()

    def stop(self) -> None:
        """Let ``run`` return after the callbacks of this round."""
        self._stopped = True

    def close(self) -> None:
        if self._wakeup is not None:
            signal.set_wakeup_fd(-1)
            for fd in self._wakeup:
                os.close(fd)
            self._wakeup = None
        self._selector.close()

    def _signalled(self, _events: int) -> None:
        assert self._wakeup is not None
        numbers = b""
        with contextlib.suppress(BlockingIOError):
            numbers = os.read(self._wakeup[0], 4096)
        for number in dict.fromkeys(numbers):
            if number in self._on_signal:
                self._on_signal[number]()
