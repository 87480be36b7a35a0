"""A job that failed is launched again, as often as was said, and no job that did not fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

from distconsole.errors import UnreachableError, UsageError
from distconsole.model.events import EndState, Event, Narration, PlanMade, PlannedHost, RunEnded
from distconsole.model.names import RunId
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.operations.control import Control
from distconsole.operations.restarting import restarts_of, with_restarts
from distconsole.session import Session


def unreachable(_where: Where) -> AbstractContextManager[Session]:
    raise UnreachableError("gone")


class Attempts:
    """Ends as told, one state an attempt; an exception is raised instead."""

    def __init__(self, *ends: EndState | Exception) -> None:
        self._ends = list(ends)
        self.asked: list[tuple[dict[str, str], RunId | None]] = []

    def __call__(self, request: Run, code: RunId | None) -> Iterator[Event]:
        self.asked.append((dict(request.env), code))
        run, end = f"run-{len(self.asked)}", self._ends.pop(0)
        yield PlanMade(
            t=1.0,
            run=run,
            launcher="torch",
            why="",
            world_size=1,
            hosts=(PlannedHost(host="a", ranks=(0,), command="", env={}),),
        )
        if isinstance(end, Exception):
            raise end
        yield RunEnded(t=2.0, run=run, state=end, exit_code=len(self.asked), seconds=1.0)


def codes(attempts: Attempts, restarts: int, control: Control | None = None) -> list[int]:
    request = Run(
        "t.py", env=(("A", "1"), ("DISTCONSOLE_CHECKPOINT", "/x")), max_restarts=restarts
    )
    events = with_restarts(request, attempts, unreachable, control or Control())
    return [event.exit_code for event in events if isinstance(event, RunEnded)]


FAILED, SUCCEEDED, STOPPED = EndState.FAILED, EndState.SUCCEEDED, EndState.STOPPED


@pytest.mark.parametrize(
    ("ends", "restarts", "seen"),
    [
        ((SUCCEEDED,), 3, [1]),
        ((FAILED,), 0, [1]),
        ((FAILED, SUCCEEDED), 3, [1, 2]),
        ((FAILED, FAILED, FAILED), 2, [1, 2, 3]),
        ((FAILED, STOPPED), 3, [1, 2]),
        ((STOPPED,), 3, [1]),
    ],
)
def test_only_a_failure_is_restarted_and_only_so_often(
    ends: tuple[EndState, ...], restarts: int, seen: list[int]
) -> None:
    assert codes(Attempts(*ends), restarts) == seen


def test_every_restart_knows_its_number_its_checkpoint_and_runs_the_first_ones_code() -> None:
    attempts = Attempts(FAILED, FAILED, SUCCEEDED)
    codes(attempts, 5)
    kept = {"A": "1", "DISTCONSOLE_CHECKPOINT": "/x"}
    assert attempts.asked == [
        (kept, None),
        ({**kept, "DISTCONSOLE_RESTART": "1"}, "run-1"),
        ({**kept, "DISTCONSOLE_RESTART": "2"}, "run-1"),
    ]


def test_who_stops_a_job_that_fails_meanwhile_does_not_get_another() -> None:
    control = Control()
    control.stop()
    assert codes(Attempts(FAILED), 3, control) == [1]


def test_hosts_that_are_gone_leave_the_jobs_own_failure_as_the_outcome() -> None:
    attempts = Attempts(FAILED, UnreachableError("1 of 2 hosts cannot be reached: b"))
    events = list(with_restarts(Run("t.py", max_restarts=3), attempts, unreachable, Control()))
    last = events[-1]
    assert isinstance(last, Narration)
    assert last.text == "not restarted: 1 of 2 hosts cannot be reached: b"
    assert len(attempts.asked) == 2
    with pytest.raises(UnreachableError):
        codes(Attempts(UnreachableError("no host")), 3)


def test_who_restarts_must_be_there() -> None:
    with pytest.raises(UsageError, match="--detach leaves"):
        restarts_of(Run("t.py", max_restarts=1, detach=True))
    with pytest.raises(UsageError, match="submitted to Slurm"):
        restarts_of(Run("t.py", max_restarts=1, slurm="-N2"))
    assert restarts_of(Run("t.py", max_restarts=2)) == 2
    assert restarts_of(Run("t.py", max_restarts=2, dry_run=True)) == 0
    assert restarts_of(Run("t.py", max_restarts=2, launcher=LauncherName.TORCHRUN)) == 0
