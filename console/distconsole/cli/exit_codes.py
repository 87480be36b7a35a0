"""The exit codes of the program, decided in one place; a job's own code passes through unchanged."""

from __future__ import annotations

from enum import IntEnum

from msgspec import UNSET

from distconsole.model.check_outcome import exit_code_of_check
from distconsole.model.events import (
    BenchEnded,
    CheckEnded,
    CollectivesMeasured,
    ConditionJudged,
    Event,
)
from distconsole.model.run_events import RunEnded


class ExitCode(IntEnum):
    """What the program's exit code says when it is not a job's."""

    OK = 0
    UNHEALTHY = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130
    TERMINATED = 143


def exit_code_of(event: Event) -> int | None:
    """Return the exit code that ``event`` decides, or None if it decides nothing."""
    match event:
        case RunEnded() if event.error is not UNSET:
            return None  # the error that follows does
        case RunEnded() | BenchEnded() | CollectivesMeasured() | ConditionJudged():
            return event.exit_code
        case CheckEnded():
            return exit_code_of_check(event.report)
        case _:
            return None
