"""Every case names its culprit, and only its culprit; whatever ranks tell, nobody who waits with most is blamed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Kind
from distconsole.runs.diagnosis.judge import judge
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.diagnosis.stacks import line_text
from fakes.any_entry import any_value
from suite.roll_calls import roll_of
from suite.seeds import seeds

CASES: list[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("cases.yaml").read_text(), yaml.CSafeLoader
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_case_is_named(case: dict[str, Any]) -> None:
    found = judge(roll_of(case))
    text = f"{found.summary}; {found.hint}"
    assert (found.kind, list(found.ranks)) == (Kind(case["kind"]), case["ranks"]), text
    for words in case.get("says", ()):
        assert words in text
    if "at" in case:
        assert found.place is not None
        assert line_text(found.place) == case["at"]
    assert found.hang is case.get("hang", True)
    assert found.sure.value == case.get("sure", found.sure.value)


def test_a_rank_whose_steps_are_known_was_started() -> None:
    case = {"world": 2, "no_call": [1], "each": {"waits": "all_reduce 7 train.py:88"}}
    found = judge(replace(roll_of(case), usual_ms={1: 30.0}))
    assert "never started" not in found.summary
    assert "has made steps, but its host does not say where it is now" in found.summary


def test_a_start_without_a_stack_is_not_said_to_import() -> None:
    calls = {rank: Call(rank=rank, pid=rank + 7, stage="starting") for rank in range(2)}
    found = judge(Roll("run-1", calls, dict.fromkeys(calls, "n0"), {}))
    assert found.kind is Kind.STARTING
    assert "has made no step yet" in found.summary or "have made no step yet" in found.summary
    assert found.sure.value == "likely"


@pytest.mark.parametrize("seed", seeds(8, always=2))
def test_whatever_nodes_tell_a_diagnosis_is_made(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        world = dice.choice((1, 2, 4, 9))
        told = [
            msgspec.convert(any_value(Call, dice), Call) for _ in range(dice.randrange(world + 1))
        ]
        calls = {call.rank: call for call in told}
        hosts = {rank: f"n{rank % 2}" for rank in range(world)}
        away = {"n1": "timed out"} if dice.random() < 0.3 else {}
        found = judge(Roll("run-1", calls, hosts, away, longest_s=dice.choice((0.0, 90.0))))
        assert found.summary
        assert set(found.ranks) <= set(hosts) | set(calls)


@pytest.mark.parametrize("seed", seeds(8, always=2))
def test_nobody_who_waits_where_most_wait_is_blamed(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(40):
        world = dice.choice((2, 3, 4, 8, 64))
        odd = dice.sample(range(world), dice.randint(0, (world - 1) // 2))
        waits = {
            "waits": dice.choice(
                ("all_reduce 7 train.py:88", "backward 7 train.py:88", "all_reduce - train.py:8")
            )
        }
        others = [
            {"at": "load data.py:3", "done": 6},
            {"waits": "barrier 7 train.py:95"},
            {"waits": "all_reduce 6 train.py:88"},
            {
                "at": "main train.py:99",
                "in": dice.choice(("destroy", "lock", "dataloader", "save")),
            },
            {"at": "f train.py:3", "state": dice.choice("RSDTt"), "recorder": False},
            {"alive": False, "ended": {"exit_code": dice.choice((0, 1))}},
        ]
        case = {"world": world, "each": waits, **{rank: dice.choice(others) for rank in odd}}
        assert set(judge(roll_of(case)).ranks) <= set(odd), case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_a_backend_that_met_its_timeout_decides_nothing(case: dict[str, Any]) -> None:
    bare, roll = judge(roll_of(case)), roll_of(case)
    met = "torch: backend gloo met a timeout or an error"
    for rank, call in roll.calls.items():
        roll.calls[rank] = msgspec.structs.replace(call, note=met)
    found = judge(roll)
    assert (found.kind, found.ranks, found.sure) == (bare.kind, bare.ranks, bare.sure)
