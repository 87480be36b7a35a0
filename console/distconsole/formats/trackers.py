"""What services that keep curves of runs have in common: a run's values in batches, its settings, findings and end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from distconsole.formats.curves import Curves, Point, end_text, finding_text
from distconsole.formats.settings import settings_of
from distconsole.model.names import count_text
from distconsole.model.run_events import PlanMade, RunEnded, RunEvents, RunFinding

BATCH = 500
PROJECT = "distconsole"
"""Where runs go unless the service's own variable names another project or experiment."""
MAX_FINDINGS = 20
MAX_NOTE_CHARS = 5000


class Value(NamedTuple):
    """A value of a curve, under its name in the service; ``t`` in UNIX seconds."""

    name: str
    value: float
    step: int
    t: float


class Tracker:
    """One run, as a service of curves is told of it; a subclass says it in the service's own words.

    Its ``take``, ``flush`` and ``close`` raise ConsoleError where the service refuses.
    """

    place = ""
    """Where it can be seen, in words; known once it has begun."""

    def __init__(self) -> None:
        self._curves = Curves()
        self._values: list[Value] = []
        self._findings: list[str] = []
        self._end: RunEnded | None = None
        self._begun = False
        self._sent = 0

    def begin(self, event: RunEvents, name: str, settings: dict[str, str]) -> None:
        """Make the run in the service, of which ``event`` is the first."""
        raise NotImplementedError

    def send(self, values: Sequence[Value]) -> None:
        raise NotImplementedError

    def end(self, end: RunEnded | None, note: str) -> None:
        """Say how it ended, None where it goes on; ``note`` is what is worth telling, in Markdown."""
        raise NotImplementedError

    def take(self, event: RunEvents) -> None:
        if not self._begun:
            plan = event if isinstance(event, PlanMade) else None
            self.begin(event, plan.name if plan else "", dict(settings_of(plan)) if plan else {})
            self._begun = True
        for point in self._curves.of(event):
            self._values.append(Value(_name(point), point.value, point.step, event.t))
        if isinstance(event, RunFinding):
            self._findings.append(finding_text(event))
        elif isinstance(event, RunEnded):
            self._end = event
        if len(self._values) >= BATCH:
            self.flush()

    def flush(self) -> None:
        values, self._values = self._values, []
        if values:
            self.send(values)
            self._sent += len(values)

    def close(self) -> str:
        self.flush()
        words = [end_text(self._end)] if self._end is not None else []
        more = len(self._findings) - MAX_FINDINGS
        words += [*self._findings[:MAX_FINDINGS], *([f"and {more} more"] if more > 0 else [])]
        if self._begun:
            self.end(self._end, "\n\n".join(words)[:MAX_NOTE_CHARS])
        return f"{count_text(self._sent, 'value')} written to {self.place}"

    def abandon(self) -> None:
        """What the service has, it keeps."""


def _name(point: Point) -> str:
    band = point.place in ("lowest", "highest")
    return f"{point.tag}_{point.place}" if band else point.tag
