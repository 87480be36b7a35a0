"""How a run ended, from histories of what its nodes said; the coordinator is on ``a``."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from distconsole.model.run_events import RunEnded, RunFinding
from distconsole.rpc.frames import JournalEntry
from distconsole.runs.reduce import RunReducer

BLAMED = {"rank": 0, "host": "a", "exit_code": 3, "error": "boom", "traceback": ""}
LOST = {"rank": 0, "host": "a", "exit_code": 1, "error": "node a lost", "traceback": ""}

SUCCEEDED: dict[str, Any] = {"state": "succeeded", "exit_code": 0}
FAILED: dict[str, Any] = {"state": "failed", "exit_code": 3, "first_failure": BLAMED}
A_IS_LOST: dict[str, Any] = {"state": "failed", "exit_code": 1, "first_failure": LOST}
STOPPED: dict[str, Any] = {"state": "stopped", "exit_code": 143}

Said = tuple[str, str, dict[str, Any]]


def verdict(host: str, said: dict[str, Any]) -> Said:
    return host, "verdict", said


def end(host: str, said: dict[str, Any]) -> Said:
    known = {key: said[key] for key in ("state", "exit_code")}
    return host, "end", {**known, "seconds": 1.0}


def told(history: list[Said]) -> tuple[RunEnded, list[str]]:
    """Return the run's end, and the summaries of who is blamed."""
    reducer = RunReducer("run-1", ("a", "b", "c"))
    events: list[Any] = []
    for seq, (host, kind, body) in enumerate(history, 1):
        raw = {"kind": kind, "seq": seq, "t": float(seq), **body}
        entry: JournalEntry = msgspec.convert(raw, JournalEntry)  # type: ignore[arg-type]
        events += reducer.feed(host, entry, float(seq))
    events += reducer.lost_for_good(99.0)
    (ended,) = [event for event in events if isinstance(event, RunEnded)]
    return ended, [event.summary for event in events if isinstance(event, RunFinding)]


@pytest.mark.parametrize(
    ("history", "state", "exit_code"),
    [
        ([verdict("b", SUCCEEDED), verdict("a", FAILED)], "failed", 3),
        ([verdict("b", FAILED), end("b", FAILED), verdict("a", SUCCEEDED)], "succeeded", 0),
        (
            [verdict("b", A_IS_LOST), verdict("c", A_IS_LOST), verdict("a", STOPPED)],
            "stopped",
            143,
        ),
        ([verdict("a", FAILED), verdict("b", SUCCEEDED), end("b", SUCCEEDED)], "failed", 3),
        # Its agent's word counts as the coordinator's where its shim left none.
        ([verdict("b", SUCCEEDED), end("a", FAILED)], "failed", 3),
    ],
)
def test_only_the_coordinators_word_ends_a_run(
    history: list[Said], state: str, exit_code: int
) -> None:
    ended, _ = told(history)
    assert (ended.state, ended.exit_code) == (state, exit_code)


@pytest.mark.parametrize(
    ("history", "state", "exit_code"),
    [
        ([verdict("b", SUCCEEDED), verdict("c", SUCCEEDED)], "succeeded", 0),
        ([verdict("b", A_IS_LOST), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", SUCCEEDED), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", STOPPED), verdict("c", A_IS_LOST)], "failed", 1),
        ([verdict("b", STOPPED), verdict("c", STOPPED)], "stopped", 143),
    ],
)
def test_others_are_heard_once_the_coordinator_is_lost_and_no_order_makes_a_failure_good(
    history: list[Said], state: str, exit_code: int
) -> None:
    for order in (history, history[::-1]):
        ended, _ = told(order)
        assert (ended.state, ended.exit_code) == (state, exit_code)


def test_nobody_but_the_coordinator_blames_while_it_may_be_heard() -> None:
    _, findings = told([verdict("b", A_IS_LOST), verdict("a", FAILED)])
    assert len(findings) == 1
    assert "boom" in findings[0]
    _, findings = told([verdict("b", A_IS_LOST)])
    assert len(findings) == 1
    assert "node a lost" in findings[0]
