"""A run's figures for a comparison, beside its timeline: means over its steps, curves along three axes, bounded in size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.model.run_events import GpuSample, Metric, RunEvents, RunRestarted, Window
from distconsole.model.run_summary import RunSummary
from distconsole.runs.figures import PARTS
from distconsole.runs.pace import is_fresh
from distconsole.runs.series import Measured, Series
from distconsole.runs.timeline import RunTimeline

AXES = ("step", "seconds", "samples")
MAX_CURVES = 64
"""Metrics that are kept along time and samples."""


class Mean:
    def __init__(self) -> None:
        self.total = self.weight = 0.0

    def put(self, value: float | None, weight: float) -> None:
        if value is not None and math.isfinite(value):
            self.total += value * weight
            self.weight += weight

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.weight if self.weight else None


class RunStatistics:
    """The fold of one run's events for a comparison."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.step_ms = Mean()
        """Over all steps of all ranks but those of each rank's first window: it warms up."""
        self.parts = {name: Mean() for name in PARTS}
        self.gpu_util = Mean()
        self.gpu_names: set[str] = set()
        self.along: dict[str, dict[str, Series]] = {"seconds": {}, "samples": {}}
        """Axis -> metric -> curve."""
        self.broken_at: dict[str, int] = {}
        """Metric -> the first step at which it was NaN or infinite."""
        self.steps_of: dict[str, tuple[int, int]] = {}
        """Metric -> its first and its last step."""
        self.measured: dict[str, Measured] = {}
        """Metric -> its values at their own steps."""
        self.first_step_t: float | None = None
        self.samples = 0.0
        self._warm: set[int] = set()
        self._resuming: set[str] = set()

    @property
    def start(self) -> float:
        return self.timeline.started or 0.0

    @property
    def start_up_seconds(self) -> float | None:
        return None if self.first_step_t is None else self.first_step_t - self.start

    def apply(self, event: RunEvents) -> None:
        self.timeline.apply(event)
        if isinstance(event, Window):
            self._window(event)
        elif isinstance(event, Metric):
            name = event.name
            if not math.isfinite(event.value):
                self.broken_at.setdefault(name, event.step)
            first, last = self.steps_of.get(name, (event.step, event.step))
            self.steps_of[name] = min(first, event.step), max(last, event.step)
            if name not in self.along["seconds"] and len(self.along["seconds"]) >= MAX_CURVES:
                return
            measured = self.measured.setdefault(name, Measured())
            if name in self._resuming:
                self._resuming.discard(name)
                measured.cut(event.step)
            measured.put(event.step, event.value)
            for axis, x in (("seconds", event.t - self.start), ("samples", self.samples)):
                series = self.along[axis].setdefault(name, Series())
                if axis == "seconds":
                    _interrupt(series, x)
                series.put(x, event.value, event.min, event.max)
        elif isinstance(event, GpuSample):
            self._gpu(event)
        elif isinstance(event, RunRestarted):
            self._warm.clear()
            self._resuming = set(self.measured)

    def close(self) -> None:
        """Add to the curves the values that are still held back; call it last."""
        self.timeline.close()

    def curves(self) -> dict[str, dict[str, Series]]:
        """Return axis -> title -> curve; ``seconds`` and times of ``samples`` count from the start."""
        by_time = {
            "samples/s": self.timeline.throughput,
            "step ms": self.timeline.step_ms.series,
            "GPU %": self.timeline.gpu_use.series,
        }
        return {
            "step": self.timeline.metrics,
            "seconds": {**self.along["seconds"], **by_time},
            "samples": self.along["samples"],
        }

    def _window(self, event: Window) -> None:
        if event.steps <= 0:
            return
        if self.first_step_t is None:
            self.first_step_t = event.t
        mean = event.step_ms_mean
        if mean is not None and event.samples_s is not None:
            self.samples += max(0.0, event.samples_s * event.steps * mean / 1000)
        if event.rank not in self._warm:
            self._warm.add(event.rank)
            return
        self.step_ms.put(mean, event.steps)
        for name, part in self.parts.items():
            part.put(getattr(event, name), event.steps)

    def _gpu(self, event: GpuSample) -> None:
        if event.rank is UNSET:
            return
        if event.name:
            self.gpu_names.add(event.name)
        if event.util is not None:
            self.gpu_util.put(event.util, 1)


@dataclass(frozen=True, slots=True)
class Compared:
    """One run to compare: its summary for ``show``, the fold of its events, and its settings."""

    summary: RunSummary
    statistics: RunStatistics
    settings: Mapping[str, str]


def _interrupt(series: Series, x: float) -> None:
    """Interrupt ``series`` before ``x`` if the gap is far longer than the last one between two values."""
    if len(series) > 1:
        usual_ms = 1000 * (series.xs[-1] - series.xs[-2])
        if not is_fresh(series.xs[-1], x, usual_ms):
            series.interrupt(x)
