"""Rates from counters that only grow."""

from __future__ import annotations

WRAP_32_BIT = 2**32


class Rate:
    """Units a second of one counter, by the difference of two readings.

    A counter that went back (a reset, a reloaded driver) gives no rate for that interval. One that
    ``may_wrap`` and was seen to go back below 2**32 is taken to be 32 bits wide and gives none
    until it passes that: at many gigabytes a second its differences would mean nothing.
    """

    def __init__(self, unit: float = 1.0, may_wrap: bool = False) -> None:
        self._unit = unit
        self._may_wrap = may_wrap
        self._narrow = False
        self._last: tuple[int, float] | None = None

    def update(self, value: int | None, now: float) -> float | None:
        """Return the rate since the reading before; None without one, or without a value."""
        if value is None:
            self._last = None
            return None
        before, self._last = self._last, (value, now)
        if value >= WRAP_32_BIT:
            self._narrow = False
        if before is None or now <= before[1]:
            return None
        if value < before[0]:
            self._narrow = self._may_wrap and before[0] < WRAP_32_BIT
            return None
        if self._narrow:
            return None
        return round((value - before[0]) * self._unit / (now - before[1]), 3)
