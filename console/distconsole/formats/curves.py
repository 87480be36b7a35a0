"""A run as curves over its steps: what TensorBoard, Weights & Biases and MLflow are given, under the same names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from distconsole.model.run_events import (
    GpuSample,
    Metric,
    PlanMade,
    RunEnded,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.runs.present import present
from distconsole.runs.timeline import RunTimeline

MAX_RANKS = 256
"""Ranks with curves of their own; more make any page of them unusable."""


class Point(NamedTuple):
    """A value of a curve; ``place``: empty for what is reduced over the ranks, ``lowest``, ``highest``, or ``ranks``."""

    place: str
    tag: str
    value: float
    step: int


class Curves:
    def __init__(self) -> None:
        self._timeline = RunTimeline()
        self._second = 0

    def of(self, event: RunEvents) -> Iterator[Point]:
        """Yield the values that an event adds."""
        match event:
            case Metric():
                yield Point("", event.name, event.value, event.step)
                yield Point("lowest", event.name, event.min, event.step)
                yield Point("highest", event.name, event.max, event.step)
            case Window():
                self._timeline.apply(event)
                yield from self._window(event)
            case GpuSample():
                yield from self._gpu(event)
            case PlanMade():
                self._timeline.apply(event)
            case _:
                pass

    def _window(self, event: Window) -> Iterator[Point]:
        if event.step_ms_mean is not None and event.rank < MAX_RANKS:
            yield Point("ranks", f"step_ms/rank_{event.rank:04}", event.step_ms_mean, event.step)
        if int(event.t) <= self._second:
            return
        self._second = int(event.t)
        step = self._timeline.steps or 0
        figures = present(self._timeline, event.t)
        if figures.samples_s is not None:
            yield Point("", "throughput/samples_s", figures.samples_s, step)
        known = [v.step_ms_mean for v in figures.at_work if v.step_ms_mean is not None]
        if known:
            reduced = {"": sum(known) / len(known), "lowest": min(known), "highest": max(known)}
            for place, value in reduced.items():
                yield Point(place, "throughput/step_ms", value, step)

    def _gpu(self, event: GpuSample) -> Iterator[Point]:
        if event.rank is UNSET:
            whose = f"{event.host}_gpu_{event.gpu}"
        elif event.rank >= MAX_RANKS:
            return
        else:
            whose = f"rank_{event.rank:04}"
        figures = {"util": event.util, "mem_used": event.mem_used, "power_w": event.power_w}
        for name, value in figures.items():
            if value is not None:
                yield Point("ranks", f"gpu_{name}/{whose}", value, self._timeline.steps or 0)


def finding_text(event: RunFinding) -> str:
    """Return a finding in Markdown."""
    seen = f"\n\n```\n{event.seen}\n```" if event.seen else ""
    return f"**{event.severity}** {event.summary}{seen}\n\n{event.hint}"


def end_text(event: RunEnded) -> str:
    return f"{event.state}, exit code {event.exit_code}, {event.seconds:.1f} s"
