"""A roll call from a node is bounded and typed; a field that is not as agreed is unknown, and the rest is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from distconsole.errors import AgentError
from distconsole.model.diagnosis.calls import Call
from distconsole.rpc.roll_calls import MAX_CALLS, read_call, read_calls
from distconsole.rpc.wire import check_result
from distconsole_agent.roll_call.calling import with_spans

FRAME = {"function": "f", "file": "/t.py", "line": 3}


def test_what_is_not_told_is_unknown() -> None:
    assert read_call({"rank": 3, "pid": 7, "alive": True}) == Call(rank=3, pid=7, alive=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"wchan": "x" * 513},
        {"state": 7},
        {"silent_s": -1.0},
        {"pid": -4},
        {"threads": [{"frames": [FRAME] * 65}]},
        {"threads": [{}] * 65},
        {"children": [{"pid": 1}] * 257},
        {"collectives": [{"seq": "many"}]},
        {"collectives": [{"seq": 1, "input_sizes": [[2**64]]}]},
        {"gpu": []},
        {"step": -2},
        {"ended": {"signal": 1 << 40}},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_field_beyond_its_bounds_is_unknown_and_costs_no_other(wrong: dict[str, Any]) -> None:
    call = read_call({"rank": 3, "pid": 7, "main_cpu_s": 0.5, **wrong})
    assert call is not None
    kept = {"pid": 7} if "pid" not in wrong else {}
    assert call == Call(rank=3, main_cpu_s=0.5, **kept)


@pytest.mark.parametrize("wrong", [{}, {"rank": -1}, {"rank": "1"}, {"rank": 10**7}])
def test_a_call_that_names_no_rank_is_none(wrong: dict[str, Any]) -> None:
    assert read_call({"pid": 7, **wrong}) is None


@pytest.mark.parametrize(
    "wrong", [{}, {"ranks": "abc"}, {"ranks": [{"rank": 1}] * (MAX_CALLS + 1)}]
)
def test_an_answer_without_ranks_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(AgentError, match="roll_call"):
        read_calls(wrong)


def test_escapes_are_stripped_and_a_rank_counts_once() -> None:
    frames = [{**FRAME, "function": "\x1b[31mred\x1b[0m\u202e"}]
    told = {"ranks": [{"rank": 1, "threads": [{"main": True, "frames": frames}]}, {"rank": 1}, 5]}
    (call,) = read_calls(check_result("roll_call", told))
    assert call.frames[0].function == "red"


def test_a_group_of_very_many_ranks_is_told_by_its_first_and_last() -> None:
    told = with_spans({"collectives": [{"seq": 1, "ranks": list(range(8192))}]})
    assert len(json.dumps(told)) < 100
    calls = read_calls({"ranks": [{"rank": rank, **told} for rank in range(2)]})
    assert [call.collectives[0].ranks for call in calls] == [tuple(range(8192))] * 2
    assert calls[0].collectives[0].ranks is calls[1].collectives[0].ranks


@pytest.mark.parametrize("ranks", [[*range(64), 65], list(range(63)), []])
def test_other_groups_are_told_rank_by_rank(ranks: list[int]) -> None:
    assert with_spans({"collectives": [{"seq": 1, "ranks": list(ranks)}]}) == {
        "collectives": [{"seq": 1, "ranks": ranks}]
    }
