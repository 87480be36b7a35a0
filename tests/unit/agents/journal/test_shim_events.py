"""How a node judges a run whose coordinator has died with its shim: by the order in which things happened."""

import json
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal.rank_states import RankStates
from distconsole_agent.journal.shim_events import ShimEventReducer, ShimLines
from distconsole_agent.supervisor.runlog import ShimEvent
from fakes.specs import run_spec

SPEC = run_spec((0,), (1,))
FAILED = {"rank": 0, "pid": 7, "exit_code": 3, "signal": None, "error": "E", "traceback": ""}
STOPPING = {"reason": "user"}


def judge(steps: float, *events: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the verdict after events a second apart, with the clock set by so much after each."""
    reducer, wall = ShimEventReducer(SPEC, RankStates([0], engine_ranks=True)), 10_000.0
    for boot, (event, fields) in enumerate(events, 50):
        told = ShimEvent(event, int(wall * 1e9), boot * 10**9)
        reducer.tell(told._replace(**fields))
        wall += 1 + steps
    (verdict,) = reducer.judge_lost(int(wall * 1e9), "gone")
    return verdict


@pytest.mark.parametrize("steps", [-3600.0, 0.0, 3600.0])
def test_a_clock_that_is_set_changes_no_verdict_over_a_dead_coordinator(steps: float) -> None:
    failed, stopping = ("failed", FAILED), ("stopping", STOPPING)
    assert judge(steps, stopping)["state"] == "stopped"
    assert judge(steps, stopping, failed)["state"] == "stopped"
    assert judge(steps, failed, stopping)["exit_code"] == 3
    assert judge(steps, failed)["first_failure"]["error"] == "E"
    assert judge(steps)["first_failure"]["host"] == "a"


def test_lines_of_the_first_version_are_judged_by_the_clock_that_they_have() -> None:
    reducer = ShimEventReducer(SPEC, RankStates([0], engine_ranks=True))
    reducer.tell(ShimEvent("stopping", 10**9, **STOPPING))
    reducer.tell(ShimEvent("failed", 2 * 10**9, **FAILED))
    assert reducer.judge_lost(0, "gone")[0]["state"] == "stopped"


def test_shim_lines_are_read_whole_and_only_once_without_nonsense(tmp_path: Path) -> None:
    path = tmp_path / "shim.jsonl"
    lines = ShimLines(str(path))
    assert lines.read() == []
    first = json.dumps({"t_ns": 1, "event": "started"}).encode() + b"\n"
    path.write_bytes(first + b'{"t_ns": 2, "ev')
    assert lines.read() == [(len(first), ShimEvent("started", 1))]
    assert lines.read() == []
    nonsense = b'nonsense\n[1]\n{}\n{"event": "ended"}\n{"event": "ended", "t_ns": true}\n'
    with path.open("ab") as file:
        file.write(b'ent": "ended"}\n' + nonsense + b"x" * 600_000)
        file.write(b'\n{"event": "ended", "t_ns": 5}\n')
    assert [(event.event, event.t_ns) for _, event in lines.read()] == [("ended", 2), ("ended", 5)]
    lines.close()
