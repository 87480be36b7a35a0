"""A clock that does not jump when the node's is set: UNIX nanoseconds.

It is the wall clock as it was at first, and goes on with CLOCK_BOOTTIME. Others' wall-clock times,
those of the hook's exceptions, are converted to it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Callable, NamedTuple

LOOK_SECONDS = 1.0
"""Seconds between a shim's checks for a jump of the wall clock."""

STEP_NS = 20_000_000
"""Smallest change of the wall clock that counts; two readings may lie this far apart on a busy node."""

CLOSE_NS = 1_000_000
TRIES = 3
MAX_STEPS = 64


class _Period(NamedTuple):
    """Between two steps of the wall clock, in steady time."""

    begun_ns: int  # when the step was not seen yet that it begins with
    seen_ns: int  # when that step was seen
    ahead_ns: int  # by how much the wall clock is ahead


class SteadyClock:
    """One process's, by ``wall_ns`` (UNIX), which may jump, and ``boot_ns``, which does not."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        boot_ns: Callable[[], int] = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME),
    ) -> None:
        self._wall_ns = wall_ns
        self._boot_ns = boot_ns
        self._base_ns = 0
        self._base_ns = self._wall_ahead_ns()
        first_ns = self.now_ns()
        self._periods = [_Period(0, first_ns, 0)]
        self._looked_ns = first_ns

    def now_ns(self) -> int:
        return self._boot_ns() + self._base_ns

    def look(self) -> None:
        """Record a jump of the wall clock since the last look."""
        ahead_ns, now_ns = self._wall_ahead_ns(), self.now_ns()
        if abs(ahead_ns - self._periods[-1].ahead_ns) >= STEP_NS:
            self._periods.append(_Period(self._looked_ns, now_ns, ahead_ns))
            del self._periods[:-MAX_STEPS]
        self._looked_ns = now_ns

    def of_wall(self, t_ns: int) -> int:
        """Return the steady time of a wall clock's, the later one of two; now, if it was never that time."""
        self.look()
        until_ns = now_ns = self._looked_ns
        for period in reversed(self._periods):
            found_ns = t_ns - period.ahead_ns
            if period.begun_ns <= found_ns <= until_ns:
                return found_ns
            until_ns = period.seen_ns
        return now_ns

    def to_wall(self, t_ns: int) -> int:
        """Return a time as the wall clock has it at present, as others on the node expect it."""
        return t_ns + self._wall_ahead_ns()

    def to_boot(self, t_ns: int) -> int:
        """Return a time since the boot, as all processes of the node have it."""
        return t_ns - self._base_ns

    def _wall_ahead_ns(self) -> int:
        """Compare the clocks; two readings with a pause in between prove nothing."""
        readings = []
        for _ in range(TRIES):
            before_ns, wall_ns, after_ns = self.now_ns(), self._wall_ns(), self.now_ns()
            readings.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
            if readings[-1][0] < CLOSE_NS:
                break
        return min(readings)[1]


_CLOCK = SteadyClock()
now_ns, look, of_wall = _CLOCK.now_ns, _CLOCK.look, _CLOCK.of_wall
to_wall, to_boot = _CLOCK.to_wall, _CLOCK.to_boot

EARLY_SECONDS = 0.1
"""A wake-up this little before a second counts as having reached it: clocks do not run alike."""


def to_next_second(t: float) -> float:
    """Return how long from ``t`` (UNIX seconds) to the next whole second; at least ``EARLY_SECONDS``."""
    rest = 1.0 - t % 1.0
    return rest if rest >= EARLY_SECONDS else rest + 1.0
