"""What is worth a line of a run that is drawn elsewhere: its name, what happened to it, its end. It draws nothing."""

from __future__ import annotations

from typing import Protocol

from msgspec import UNSET

from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    LinkChanged,
    PlanMade,
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
)
from distconsole.text.tables import duration_text

WORTH_WORDS = (PlanMade, RunFinding, LinkChanged, RunRestarted, RunEnded)
"""Events of which something is said; the others are many."""


class NoteTaker(Protocol):
    """Keeps what is said."""

    def note(self, line: str) -> None:
        """Keep a line that is seen elsewhere already."""


def note_event(event: RunEvents, notes: NoteTaker, steps: int | None = None) -> None:
    """Say what ``event`` is worth.

    Args:
        steps: How many steps the run has done so far.
    """
    match event:
        case PlanMade():
            notes.note(_plan_words(event))
        case RunFinding() if event.severity in (Severity.WARN, Severity.FAIL):
            notes.note(f"{event.severity.value}: {event.summary}")
        case LinkChanged():
            gone = f"connection lost ({event.reason}); the run goes on"
            notes.note(f"{event.host}: {'connected again' if event.connected else gone}")
        case RunRestarted():
            notes.note(f"restart {event.restart} of {event.of}")
        case RunEnded():
            notes.note(end_words(event, steps))
        case _:
            pass


def _plan_words(plan: PlanMade) -> str:
    ranks = f"{plan.world_size} rank{'s' if plan.world_size != 1 else ''}"
    hosts = f"{len(plan.hosts)} host{'s' if len(plan.hosts) != 1 else ''}"
    return f"run {plan.run}: {ranks} on {hosts}, {plan.launcher} launcher ({plan.why})"


def end_words(end: RunEnded, steps: int | None) -> str:
    """Return how a run ended, in one line."""
    parts = [f"{end.run} {end.state.value} after {duration_text(end.seconds)}"]
    if steps:
        parts.append(f"{steps:,} steps")
    if end.exit_code:
        parts.append(f"exit code {end.exit_code}")
    words = ", ".join(parts)
    failure = end.first_failure
    if failure is UNSET:
        return words
    return f"{words}; {failure.blame}"
