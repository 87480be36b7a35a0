"""A curve of bounded length that keeps its shape."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from distconsole.runs.pace import is_fresh

MAX_POINTS = 2048
"""Points a series keeps; beyond that neighbours are merged in pairs."""
MAX_GAPS = 64
"""Spans without a value that a series keeps, the longest."""
USUAL_SHARE, ENOUGH_POINTS = 50, 20
"""Number of points from which on one of this many may be an outlier."""
MAX_BROKEN = 64
"""Places of values that are no numbers that a series keeps."""
MAX_MEASURED = 1024
"""Values that are kept as they were measured."""
LEAST_SPAN = 1e-12
FARTHEST = 1e100
"""A value further from 0 is no figure any more: with it on a scale the differences overflow."""


class Series:
    """Points ``(x, value, low, high)`` with rising ``x``, at most ``limit`` of them.

    When it is full, neighbours are merged: their values averaged, the envelope kept, so that a single
    spike among a million points is still there. ``last`` is the newest point as it was given.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        if limit < 4 or limit % 2:
            raise ValueError(f"a series needs an even limit of at least 4, not {limit}")
        self.limit = limit
        self.xs: list[float] = []
        self.values: list[float] = []
        self.lows: list[float] = []
        self.highs: list[float] = []
        self.broken: list[float] = []
        """Places of values that were NaN, infinite or too large; some of them where there were many."""
        self.gaps: list[tuple[float, float]] = []
        """Where nothing was measured: from the last value before to the first one after."""
        self.last: float | None = None
        self._stride = 1
        self._pending = 0

    def __len__(self) -> int:
        return len(self.xs)

    @property
    def last_x(self) -> float | None:
        return self.xs[-1] if self.xs else None

    def means(self, begin: float, each: float, count: int) -> list[float | None]:
        """Return the means of ``count`` spans of x, ``each`` long, the first from ``begin`` on; None without a value."""
        found: list[float | None] = []
        for place in range(count):
            edges = (begin + place * each, begin + (place + 1) * each)
            here = self.values[slice(*(bisect_left(self.xs, edge) for edge in edges))]
            found.append(sum(here) / len(here) if here else None)
        return found

    def put(
        self, x: float, value: float, low: float | None = None, high: float | None = None
    ) -> None:
        """Add a point; one at the newest ``x`` replaces it, an older one is ignored.

        One that is no number, or further than ``FARTHEST``, has no place on a scale: ``broken`` has its ``x``.
        """
        low = value if low is None else low
        high = value if high is None else high
        if not (abs(value) <= FARTHEST and abs(low) <= FARTHEST and abs(high) <= FARTHEST):
            if math.isfinite(x) and (not self.broken or x > self.broken[-1]):
                if len(self.broken) >= MAX_BROKEN:
                    del self.broken[::2]
                self.broken.append(x)
            return
        if self.xs and x < self.xs[-1]:
            return
        self.last = value
        if self.xs and x == self.xs[-1] and self._pending <= 1:
            self.values[-1], self.lows[-1], self.highs[-1] = value, low, high
        elif self.xs and 0 < self._pending < self._stride:
            self._merge_into_last(x, value, low, high)
        else:
            self._append(x, value, low, high)

    def interrupt(self, x: float) -> None:
        """Mark a gap between the newest point and ``x``, the next one."""
        if self.xs and self.xs[-1] < x:
            if len(self.gaps) >= MAX_GAPS:
                self.gaps.remove(min(self.gaps, key=lambda gap: gap[1] - gap[0]))
            self.gaps.append((self.xs[-1], x))
            self._pending = 0  # the next point is no neighbour

    def cut(self, x: float) -> None:
        """Forget the points from ``x`` on: the next one begins there again."""
        keep = bisect_left(self.xs, x)
        for column in (self.xs, self.values, self.lows, self.highs):
            del column[keep:]
        del self.broken[bisect_left(self.broken, x) :]
        self.gaps = [gap for gap in self.gaps if gap[1] < x]
        self.last = self.values[-1] if self.values else None
        self._pending = 0

    def points(self) -> list[tuple[float, float, float, float]]:
        return list(zip(self.xs, self.values, self.lows, self.highs, strict=True))

    def _append(self, x: float, value: float, low: float, high: float) -> None:
        if len(self.xs) >= self.limit:
            self._halve()
        self.xs.append(x)
        self.values.append(value)
        self.lows.append(low)
        self.highs.append(high)
        self._pending = 1

    def _merge_into_last(self, x: float, value: float, low: float, high: float) -> None:
        count = self._pending
        self.xs[-1] = x
        self.values[-1] += (value - self.values[-1]) / (count + 1)
        self.lows[-1] = min(self.lows[-1], low)
        self.highs[-1] = max(self.highs[-1], high)
        self._pending = count + 1

    def _halve(self) -> None:
        self.values = [
            (a + b) / 2 for a, b in zip(self.values[::2], self.values[1::2], strict=True)
        ]
        self.lows = [min(a, b) for a, b in zip(self.lows[::2], self.lows[1::2], strict=True)]
        self.highs = [max(a, b) for a, b in zip(self.highs[::2], self.highs[1::2], strict=True)]
        self.xs = self.xs[1::2]
        self._stride *= 2


class Measured:
    """Values at the steps of their measurement, none of them merged: the last of every stretch of steps.

    Stretches are as long in every record with as many steps, so that two records of like steps keep the same ones.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, float]] = {}
        self._stretch = 1

    def put(self, step: int, value: float) -> None:
        """Take a value; one at the newest step takes its place, an older one is ignored, as in a ``Series``."""
        newest = next(reversed(self._kept.values()), None)
        if newest is not None and step < newest[0]:
            return
        if abs(value) <= FARTHEST:
            self._kept[step // self._stretch] = step, value
        if len(self._kept) > MAX_MEASURED:
            self._stretch *= 2
            self._kept = {each[0] // self._stretch: each for each in self._kept.values()}

    def cut(self, step: int) -> None:
        self._kept = {bucket: each for bucket, each in self._kept.items() if each[0] < step}

    def values(self) -> dict[int, float]:
        return dict(self._kept.values())


def usual_range(lows: Sequence[float], highs: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, without outliers that would flatten all others.

    One point in fifty may be an outlier; the newest few are none if they agree.
    """
    low, high = min(lows), max(highs)
    if len(lows) < ENOUGH_POINTS:
        return low, high
    few = max(2, len(lows) // USUAL_SHARE)
    bottom = min(sorted(lows)[few], median(lows[-3:]))
    top = max(sorted(highs)[-1 - few], median(highs[-3:]))
    span = max(top - bottom, 0.1 * abs(top), LEAST_SPAN)
    return (
        bottom - span / 20 if bottom - low > span else low,
        top + span / 20 if high - top > span else high,
    )


class Band:
    """A figure over time: of each second the mean, lowest and highest; ``of_steps`` of step times, of which slow ones come seldom."""

    def __init__(self, *, of_steps: bool = False) -> None:
        self.series = Series()
        self._of_steps = of_steps
        self._second: int | None = None
        self._sum, self._count, self._low, self._high = 0.0, 0, math.inf, -math.inf

    def put(self, t: float, value: float) -> None:
        second = int(t)
        if second != self._second:
            self.flush()
            self._second = second
        self._sum += value
        self._count += 1
        if value < self._low:
            self._low = value
        if value > self._high:
            self._high = value

    def flush(self) -> None:
        if self._count and self._second is not None:
            mean, before = self._sum / self._count, self.series
            usual = min(before.last or mean, mean) if self._of_steps else None
            if not is_fresh(before.last_x, self._second, usual):
                before.interrupt(float(self._second))
            self.series.put(float(self._second), mean, self._low, self._high)
        self._sum, self._count, self._low, self._high = 0.0, 0, math.inf, -math.inf
