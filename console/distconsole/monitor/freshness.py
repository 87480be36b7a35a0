"""For how long a figure is of now, by when it was told."""

from __future__ import annotations

FRESH_SECONDS, FRESH_STEPS = 5.0, 2.0
"""A figure is of now for so long, or for so many steps of who told it, where these are longer."""


def fresh_seconds(step_ms: float | None = None) -> float:
    """Return for how long a figure is of now; who makes slow steps tells of them seldom."""
    return max(FRESH_SECONDS, FRESH_STEPS * (step_ms or 0.0) / 1000)


def is_fresh(t: float | None, now: float, step_ms: float | None = None) -> bool:
    """Whether what was told at ``t`` is of ``now`` (UNIX seconds)."""
    return t is not None and now - t <= fresh_seconds(step_ms)
