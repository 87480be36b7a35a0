"""What a window says, without what is no number or not there; most often all is. Pure and quick."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import cast

from distconsole.rpc import frames
from distconsole.runs.points import Point

Figures = tuple[
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
    float | None,
]


def figures_of(entry: frames.WindowEntry) -> Figures:
    """Return mean and 95th percentile of the step, its four parts and samples a second; None for what is no number."""
    mean, p95 = entry.step_ms or (None, None)
    data, samples_s = entry.data_ms, entry.samples_s
    forward, backward, optimizer = entry.forward_ms, entry.backward_ms, entry.optimizer_ms
    try:
        total = mean + p95 + data + forward + backward + optimizer + samples_s  # type: ignore[operator]
        if total - total == 0.0:  # all are finite, as most often
            return mean, p95, data, forward, backward, optimizer, samples_s
    except TypeError:
        pass  # one is not known
    return (
        _finite(mean),
        _finite(p95),
        _finite(data),
        _finite(forward),
        _finite(backward),
        _finite(optimizer),
        _finite(samples_s),
    )


def _finite(value: float | None) -> float | None:
    # What is no finite number is none less itself; quicker than to ask, and asked of every figure.
    return value if value is not None and value - value == 0.0 else None


def known_metrics(metrics: dict[str, float | None]) -> dict[str, float]:
    """Return those metrics that have a value, most often all."""
    if None in metrics.values():
        return {name: value for name, value in metrics.items() if value is not None}
    return cast("dict[str, float]", metrics)


def given_points(points: Sequence[frames.Point]) -> list[Point]:
    """Return those points that have a value, most often all."""
    if None in map(_VALUE, points):
        return [Point(step, value, n) for step, value, n in points if value is not None]
    return cast("list[Point]", points)


_VALUE = itemgetter(1)
