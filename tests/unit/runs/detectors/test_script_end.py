"""A run whose shell script ended with 0: what became of the launcher in it counts."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from distconsole.model.run_events import EndState, RunEnded, RunFinding
from distconsole.rpc.frames import JournalEntry
from distconsole.runs.reduce import RunReducer


def reduce(starts: str, *entries: dict[str, Any]) -> Iterator[Any]:
    reducer = RunReducer("run-1", ("a",), starts=starts)
    for seq, raw in enumerate(entries, 1):
        entry: JournalEntry = msgspec.convert({"seq": seq, "t": 1e6 + seq, **raw}, JournalEntry)
        yield from reducer.feed("a", entry, 1e6 + seq)


def state(rank: int, name: str) -> dict[str, Any]:
    return {"kind": "state", "rank": rank, "local_rank": rank, "pid": rank + 1, "state": name}


PHASE = {"kind": "phase", "rank": 1, "phase": "import_torch", "seconds": 1.0}
END = {"kind": "end", "state": "succeeded", "exit_code": 0, "seconds": 3.0}


def left(seen: str) -> dict[str, Any]:
    return {
        "kind": "note",
        "check": "run.leftover",
        "severity": "info",
        "summary": "",
        "seen": seen,
    }


TOLD = {**left("No module named 'x'"), "check": "run.launcher_failed", "rank": 1}
FAILED = (EndState.FAILED, 1)
SUCCEEDED = (EndState.SUCCEEDED, 0)


@pytest.mark.parametrize(
    ("starts", "entries", "end", "error"),
    [
        ("", [state(0, "starting"), left("sleep (7), torchrun (8)")], FAILED, "torchrun (8)"),
        ("torchrun", [PHASE, left("nvidia-smi (8), train.py (9)")], SUCCEEDED, ""),
        ("torchrun", [PHASE, state(1, "failed")], FAILED, "that started torchrun ended with 0"),
        ("torchrun", [PHASE, state(1, "failed"), state(1, "running")], SUCCEEDED, ""),
        ("", [PHASE, state(1, "failed")], SUCCEEDED, ""),
        ("torchrun", [PHASE, state(1, "exited")], SUCCEEDED, ""),
        ("torchrun", [PHASE, state(1, "failed"), TOLD], FAILED, "No module named 'x', and the"),
        ("torchrun", [PHASE, TOLD], SUCCEEDED, ""),
        ("torchrun", [TOLD], FAILED, "rank 1 on a failed first: No module named 'x', and the"),
        ("", [TOLD], SUCCEEDED, ""),
    ],
)
def test_a_script_that_ends_with_0_does_not_hide_what_became_of_its_launcher(
    starts: str, entries: list[dict[str, Any]], end: tuple[EndState, int], error: str
) -> None:
    events = list(reduce(starts, *entries, END))
    ended = next(event for event in events if isinstance(event, RunEnded))
    assert (ended.state, ended.exit_code) == end
    findings = [e for e in events if isinstance(e, RunFinding) and e.check == "run.first_failure"]
    assert [error in finding.summary for finding in findings] == [True] * bool(error)
    assert [bool(finding.hint.partition(";")[2]) for finding in findings] == [True] * bool(error)


@pytest.mark.parametrize(
    ("starts", "phases", "warns"), [("torchrun", 0, 1), ("torchrun", 1, 0), ("", 0, 0)]
)
def test_ranks_that_were_not_seen_are_a_warning_and_no_failure(
    starts: str, phases: int, warns: int
) -> None:
    events = list(reduce(starts, *[PHASE] * phases, END))
    assert [e.severity for e in events if isinstance(e, RunFinding)] == ["warn"] * warns
    assert [e.exit_code for e in events if isinstance(e, RunEnded)] == [0]
