"""Limits for all views: when a figure is of now, when a rank stands still, and when it is slow.

The line about a run, the table of ranks, the heat map, findings, pages, conditions and comparisons
read them here. The agent alone judges that a rank has stalled (``limits.STALL_SECONDS``), as it
knows each step; its state ``stalled`` is shown unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import TypeVar

T = TypeVar("T")

FRESH_SECONDS, FRESH_STEPS = 5.0, 2.0
"""A figure is of now for this many seconds, or this many steps of its rank, if these are longer.

A rank that has finished no step for longer stands still. A host reports each second; five leave room
for a busy agent and a slow link.
"""
TOGETHER_SECONDS = 3.0
"""Ranks that stall within this many seconds are one finding: where one hangs, soon all do."""

MAX_WAIT_SECONDS = 10.0
"""Longest wait of a step's figures for a rank that is behind."""

COMPARED_SECONDS, COMPARED_STEPS = 3.0, 2.0
"""A rank's figures are compared with those of others for this long, or this many of its steps if these are longer.

That is much less than ``PERSISTENT_SECONDS``: if one host's journal is read before another's, a
rank is not slow because its newest window stays the same.
"""
WARM_UP_WINDOWS = 3
"""So many windows of a rank are not compared: its first steps load libraries and compile."""
PERSISTENT_SECONDS = 6
"""A rank is slow once it stands out for this many seconds running: longer than a validation or a checkpoint."""
RECENT_WINDOWS = 5
"""Number of a rank's windows whose medians are compared: one second may be noise."""
KNOWN_WINDOWS, LEAST_NOISE, CLEAR_SHARE = 17, 7, 0.65
"""A rank is slow earlier, once each of its recent windows exceeds the noise by this share of its excess.

The noise is of this many windows of each rank at most, and of this many values at least.
"""
MOSTLY_SHARE, OFTEN_SHARE = 0.7, 0.6
"""At least half as slow it is in this share of the seconds that count, or of all that are known: pauses are not that."""
SLOW_MS, SLOW_SHARE = 1.0, 0.1
"""Least cost of a slow rank a step, in milliseconds and as a share: less is noise, or not worth a search."""
FINE_SHARE, FINE_NOISE = 0.01, 2.0
"""With waits seen this share is enough, if it exceeds the variation of a rank's own time by this factor."""
SLOW_SPREAD = 2.0
"""It exceeds the others' median by this factor of their own spread: else they differ among themselves."""
WAIT_SHARE = 0.5
"""The others wait for this share of its excess, or they do not wait for it."""
BEHIND_STEPS, BEHIND_SHARE = 2, 0.05
"""A rank falls behind by this many steps and this share of the others' steps; windows cut steps up unevenly."""

LATE_START_SECONDS, LATE_START = 5.0, 2.0
"""A rank is late that takes this much longer, and this many times as long as the others, for a part of its start."""

UNUSUAL_SHARE = 0.1
"""Least relative difference from the usual value that is listed, or coloured; no rank is called slow for it."""


def fresh_seconds(step_ms: float | None = None) -> float:
    """Return how long a figure counts as present; a rank with slow steps reports seldom."""
    return max(FRESH_SECONDS, FRESH_STEPS * (step_ms or 0.0) / 1000)


def is_fresh(t: float | None, now: float, step_ms: float | None = None) -> bool:
    """Return True if a report of ``t`` is still valid at ``now`` (UNIX seconds)."""
    return t is not None and now - t <= fresh_seconds(step_ms)


def is_late(seconds: float, usual_seconds: float) -> bool:
    """Return True if a part of a start took long enough over the usual time that all have waited for it."""
    return seconds >= max(LATE_START_SECONDS, LATE_START * usual_seconds)


def find_late(took: Mapping[T, float]) -> tuple[list[T], float]:
    """Return ranks that took much longer than most for a part of a start, and the usual seconds; none if most did."""
    usual = median_low(took.values()) if took else 0.0
    late = [each for each, seconds in took.items() if is_late(seconds, usual)]
    return late if 2 * len(late) <= len(took) else [], usual


def phase_seconds(reached: Mapping[str, float], phase: str) -> float:
    """Return the duration of the part of a start that ends with ``phase``, from the times ``reached``."""
    before = (seconds for seconds in reached.values() if seconds < reached[phase])
    return reached[phase] - max(before, default=0.0)
