"""When a figure is of now, when a rank stands still, and when it is slow: the limits, once for all that is shown.

The line about a run, the table of ranks, the heat map, findings, pages, conditions and comparisons
read them here. The agent alone judges that a rank has stalled (``limits.STALL_SECONDS``), as it
knows each step; its state ``stalled`` is shown as it is told.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import TypeVar

T = TypeVar("T")

FRESH_SECONDS, FRESH_STEPS = 5.0, 2.0
"""A figure is of now for so many seconds, or so many steps of who told it, where these are longer.

A rank that has finished no step for longer stands still. A host tells each second; five leave room
for a busy agent and a slow link.
"""
TOGETHER_SECONDS = 3.0
"""Ranks that stall so many seconds after each other are one finding: where one hangs, soon all do."""

MAX_WAIT_SECONDS = 10.0
"""What ranks tell of one step waits so long for a rank that is behind."""

COMPARED_SECONDS, COMPARED_STEPS = 3.0, 2.0
"""A rank's figures are compared with those of others for so long, or so many of its steps where these are longer.

That is much less than ``PERSISTENT_SECONDS``: where one host's journal is read before another's, a
rank is not slow because its newest window stays the same.
"""
WARM_UP_WINDOWS = 3
"""So many windows of a rank are not compared: its first steps load libraries and compile."""
PERSISTENT_SECONDS = 6
"""A rank is slow once it stands out in so many seconds running; a validation or a checkpoint is not that."""
RECENT_WINDOWS = 5
"""The medians of so many windows of a rank are compared: one second may be noise."""
KNOWN_WINDOWS, LEAST_NOISE, CLEAR_SHARE = 17, 7, 0.65
"""A rank is slow earlier, once each of its recent windows exceeds the noise by this share of what it has on top.

The noise is of so many windows of each rank at most, and of so many values at least.
"""
MOSTLY_SHARE, OFTEN_SHARE = 0.7, 0.6
"""At least half as slow it is in this share of the seconds that count, or of all that are known: pauses are not that."""
SLOW_MS, SLOW_SHARE = 1.0, 0.1
"""A slow rank costs a step so many milliseconds, and this share of it: less is noise, or not worth a search."""
FINE_SHARE, FINE_NOISE = 0.01, 2.0
"""Where waits are seen this share is enough, if it is so many times what a rank's own time differs from second to second."""
SLOW_SPREAD = 2.0
"""It exceeds the others' median by so many times what any of them does: else they differ among themselves."""
WAIT_SHARE = 0.5
"""The others wait for this share of what it has on top, or they do not wait for it."""
BEHIND_STEPS, BEHIND_SHARE = 2, 0.05
"""A rank falls behind by so many steps and this share of what others made; windows cut steps up unevenly."""

LATE_START_SECONDS, LATE_START = 5.0, 2.0
"""A rank is late that takes so long for a part of its start, and so many times as long as the others."""

UNUSUAL_SHARE = 0.1
"""A figure that differs by this share from what is usual is listed, or coloured; no rank is called slow for it."""


def fresh_seconds(step_ms: float | None = None) -> float:
    """Return for how long a figure is of now; who makes slow steps tells of them seldom."""
    return max(FRESH_SECONDS, FRESH_STEPS * (step_ms or 0.0) / 1000)


def is_fresh(t: float | None, now: float, step_ms: float | None = None) -> bool:
    """Whether what was told at ``t`` is of ``now`` (UNIX seconds)."""
    return t is not None and now - t <= fresh_seconds(step_ms)


def is_late(seconds: float, usual_seconds: float) -> bool:
    """Whether a part of a start took so much longer than is usual that all have waited for it."""
    return seconds >= max(LATE_START_SECONDS, LATE_START * usual_seconds)


def find_late(took: Mapping[T, float]) -> tuple[list[T], float]:
    """Return who took much longer than most for a part of a start, and what is usual (seconds); nobody if most did."""
    usual = median_low(took.values()) if took else 0.0
    late = [each for each, seconds in took.items() if is_late(seconds, usual)]
    return late if 2 * len(late) <= len(took) else [], usual


def phase_seconds(reached: Mapping[str, float], phase: str) -> float:
    """Return what the part of a start took that ends with ``phase``, from when each phase was ``reached``."""
    before = (seconds for seconds in reached.values() if seconds < reached[phase])
    return reached[phase] - max(before, default=0.0)
