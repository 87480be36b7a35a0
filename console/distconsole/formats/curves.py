"""A run as curves over its steps: what TensorBoard, Weights & Biases and MLflow are given, under the same names.

``Tracker`` is the common part of the services: values in batches, settings, findings and the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import UNSET

from distconsole.errors import UnavailableError
from distconsole.formats.settings import settings_of
from distconsole.model.names import count_text
from distconsole.model.run_events import (
    GpuSample,
    Metric,
    PlanMade,
    RunEnded,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.model.time_text import duration_text
from distconsole.runs.detectors.stragglers import StragglerWatch
from distconsole.runs.figures import GPU_FIGURES
from distconsole.runs.present import present
from distconsole.runs.timeline import RunTimeline

MAX_RANKS = 256
"""Ranks with curves of their own; more make any page of them unusable."""
BATCH = 500
"""Values that a service is sent together, at least."""
MAX_UNSENT = 200_000
"""Values kept for a service that takes none; the oldest go first, and are counted."""
PROJECT = "distconsole"
"""Where runs go unless the service's own variable names another project or experiment."""
MAX_FINDINGS = 20
MAX_NOTE_CHARS = 5000


class CurvePoint(NamedTuple):
    """A value of a curve; ``place``: empty for one reduced over the ranks, ``lowest``, ``highest``, or ``ranks``."""

    place: str
    tag: str
    value: float
    step: int


class Curves:
    def __init__(self) -> None:
        self._timeline = RunTimeline(StragglerWatch())  # no curve needs them judged
        self._second = 0
        self._seen: set[int] = set()  # with a window: before all have one, a sum is that of a part

    def of(self, event: RunEvents) -> Iterator[CurvePoint]:
        if isinstance(event, Metric):
            yield CurvePoint("", event.name, event.value, event.step)
            yield CurvePoint("lowest", event.name, event.min, event.step)
            yield CurvePoint("highest", event.name, event.max, event.step)
        elif isinstance(event, Window):
            self._timeline.apply(event)
            yield from self._window(event)
        elif isinstance(event, GpuSample):
            yield from self._gpu(event)
        elif isinstance(event, PlanMade):
            self._timeline.apply(event)

    def _window(self, event: Window) -> Iterator[CurvePoint]:
        if event.step_ms_mean is not None and event.rank < MAX_RANKS:
            yield CurvePoint(
                "ranks", f"step_ms/rank_{event.rank:04}", event.step_ms_mean, event.step
            )
        all_told = event.rank in self._seen or len(self._seen) + 1 >= len(self._timeline.ranks)
        self._seen.add(event.rank)
        if int(event.t) <= self._second or not all_told:
            return
        self._second = int(event.t)
        step = self._timeline.steps or 0
        figures = present(self._timeline, event.t)
        if figures.samples_s is not None:
            yield CurvePoint("", "throughput/samples_s", figures.samples_s, step)
        at_work = (v for n, v in self._timeline.ranks.items() if n not in figures.others)
        known = [view.step_ms_mean for view in at_work if view.step_ms_mean is not None]
        if known:
            reduced = {"": sum(known) / len(known), "lowest": min(known), "highest": max(known)}
            for place, value in reduced.items():
                yield CurvePoint(place, "throughput/step_ms", value, step)

    def _gpu(self, event: GpuSample) -> Iterator[CurvePoint]:
        if event.rank is UNSET:
            whose = f"{event.host}_gpu_{event.gpu}"
        elif event.rank >= MAX_RANKS:
            return
        else:
            whose = f"rank_{event.rank:04}"
        for figure in (each for each in GPU_FIGURES if each.curve):
            value = figure.value(event)
            if isinstance(value, int | float):
                step = self._timeline.steps or 0
                yield CurvePoint("ranks", f"gpu_{figure.field}/{whose}", value, step)


def finding_text(event: RunFinding) -> str:
    seen = f"\n\n```\n{event.seen}\n```" if event.seen else ""
    return f"**{event.severity}** {event.summary}{seen}\n\n{event.hint}"


def end_text(event: RunEnded) -> str:
    return f"{event.state}, exit code {event.exit_code}, {duration_text(event.seconds)}"


class CurveValue(NamedTuple):
    """A value of a curve, under its name in the service; ``t`` in UNIX seconds."""

    name: str
    value: float
    step: int
    t: float


class Tracker:
    """One run in a service of curves; a subclass calls the service's own functions.

    Its ``take``, ``flush`` and ``close`` raise what the service's package does where it refuses. What was not
    sent is kept, and sent with what comes next.
    """

    place = ""
    """Where it can be seen, in words; known once it has begun."""

    def __init__(self) -> None:
        self._curves = Curves()
        self._values: list[CurveValue] = []
        self._findings: list[str] = []
        self._end: RunEnded | None = None
        self._first: RunEvents | None = None
        self._begun = False
        self._sent = self._left_out = 0
        self._due = BATCH

    def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
        """Make the run in the service, of which ``event`` is the first."""
        raise NotImplementedError

    def send(self, values: list[CurveValue]) -> None:
        raise NotImplementedError

    def end(self, end: RunEnded | None, note: str) -> None:
        """Send the run's end, None if it goes on; ``note`` is a summary in Markdown."""
        raise NotImplementedError

    def take(self, event: RunEvents) -> None:
        is_first, self._first = self._first is None, self._first or event
        for point in self._curves.of(event):
            band = f"_{point.place}" if point.place in ("lowest", "highest") else ""
            self._values.append(CurveValue(point.tag + band, point.value, point.step, event.t))
        if isinstance(event, RunFinding):
            self._findings.append(finding_text(event))
        elif isinstance(event, RunEnded):
            self._end = event
        surplus = max(0, len(self._values) - MAX_UNSENT)
        self._left_out += surplus
        del self._values[:surplus]
        if is_first or len(self._values) >= self._due:
            self.flush()

    def flush(self) -> None:
        self._due = (
            len(self._values) + BATCH
        )  # so that one that refuses is not tried at each event
        if not self._begun and self._first is not None:
            plan = self._first if isinstance(self._first, PlanMade) else None
            settings = dict(settings_of(plan)) if plan else {}
            self.begin(self._first, plan.name if plan else "", settings)
            self._begun = True
        before = len(self._values)
        try:
            if self._values:
                self.send(self._values)
        finally:
            self._sent += before - len(self._values)
        self._due = BATCH

    def close(self) -> str:
        try:
            self.flush()
        finally:
            words = [end_text(self._end)] if self._end is not None else []
            more = len(self._findings) - MAX_FINDINGS
            words += [*self._findings[:MAX_FINDINGS], *([f"and {more} more"] if more > 0 else [])]
            if self._begun:
                self.end(self._end, "\n\n".join(words)[:MAX_NOTE_CHARS])
        if self._left_out:
            raise UnavailableError(f"{count_text(self._left_out, 'value')} left out")
        return f"{count_text(self._sent, 'value')} written to {self.place}"

    def abandon(self) -> None:
        """The service keeps its data."""
