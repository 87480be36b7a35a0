"""Where on a run's time axis the reader is, and how that moves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from distconsole.model.time_text import DAY_SECONDS, span_seconds, time_of_day

PLAY_SECONDS = 120.0
"""Longest time in which a run is played from its start."""


@dataclass(slots=True)
class Axis:
    """From when to when the run is known, UNIX seconds."""

    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long that is; never 0."""
        return max(1e-3, self.end - self.start)


class ReplayClock:
    """A time on ``axis``, which may still grow; it stands, or moves as ``monotonic`` seconds pass."""

    def __init__(self, axis: Axis, monotonic: Callable[[], float]) -> None:
        self.axis = axis
        self.playing = False
        self.jumps = 0
        """How often it was put elsewhere."""
        self._monotonic = monotonic
        self._from = math.inf
        self._since = 0.0

    @property
    def t(self) -> float:
        """Where it is, UNIX seconds; on the axis."""
        t = self._from
        if self.playing:
            t += (self._monotonic() - self._since) * self.speed
        return max(self.axis.start, min(t, self.axis.end))

    @property
    def at_end(self) -> bool:
        return self.t >= self.axis.end

    def seek(self, t: float) -> None:
        """Put it at ``t``; infinity is the end, wherever that comes to be."""
        self.jumps += 1
        self._put(t)

    @property
    def speed(self) -> int:
        """Seconds of the run for each second."""
        return math.ceil(self.axis.seconds / PLAY_SECONDS)

    def play(self) -> None:
        """Let it move; at the end, from the start."""
        here = self.axis.start if self.at_end else self.t
        self.playing = True
        self._put(here)

    def pause(self) -> None:
        here = self.t
        self.playing = False
        self._put(math.inf if here >= self.axis.end else here)

    def stop_at_end(self) -> bool:
        """Stop at the end; return True if the clock stands."""
        if self.playing and self.at_end:
            self.pause()
        return not self.playing

    def _put(self, t: float) -> None:
        self._from, self._since = t, self._monotonic()


def parse_time(
    text: str, axis: Axis, now: float, time_of_step: Callable[[int], float | None]
) -> float:
    """Return the time on ``axis`` that ``text`` means, UNIX seconds.

    ``start``, ``end``, ``14:05:10`` (that day, or the next ones), ``90s`` or ``1h30m`` after the start,
    ``+30s`` and ``-30s`` from ``now``, ``40%``, or ``step 1200``. Raises ValueError if it means none.
    """
    text = text.strip()
    if text in ("start", "end"):
        return axis.start if text == "start" else math.inf
    found = re.fullmatch(r"step\s+(\d+)", text)
    if found is not None:
        t = time_of_step(int(found[1]))
        if t is None:
            raise ValueError(f"no rank has done step {found[1]}")
        return t
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text)
    if found is not None:
        return axis.start + axis.seconds * min(100.0, float(found[1])) / 100
    span = span_seconds(text.lstrip("+-"))
    if span is not None:
        return {"+": now, "-": now}.get(text[0], axis.start) + (-span if text[0] == "-" else span)
    clock = time_of_day(text, axis.start)
    if clock is not None:
        near = round((now - clock) / DAY_SECONDS)
        times = [clock + max(0, day) * DAY_SECONDS for day in (near - 1, near, near + 1)]
        inside = [t for t in times if axis.start - 60 <= t <= axis.end + 60]
        return min(inside or [clock], key=lambda t: abs(t - now))
    raise ValueError(
        f"{text!r} is no time of the run: 14:05:10, 90s (after the start), +30s, 40%, step 1200, start or end"
    )
