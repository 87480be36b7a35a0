"""A trace of a script that knows nothing of it: begun and ended by the byte that the agent writes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Outcome, Runner

pytestmark = pytest.mark.usefixtures("warm")

TRAIN = """
import json, os, time, torch
from distconsole_training import records
from distconsole_training.process import process

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()

def ask(count, path="trace.json", late=10**10, seconds=0.05):
    now = time.time_ns()
    wanted = {"start_ns": now, "give_up_ns": now + late, "seconds": seconds, "path": path}
    with open(process.made.path + records.WANTED_SUFFIX, "w") as file:
        json.dump(wanted, file)
    process.made.map[records.OFFSET_WANTED] = count

def until(done):
    end = time.monotonic() + 60
    while not done() and time.monotonic() < end:
        step()

def told(path="trace.json"):
    return os.path.exists(path + records.TOLD_SUFFIX)

for _ in range(3):
    step()
"""


def written(ended: Outcome, runner: Runner, name: str = "trace.json.told") -> Any:
    assert ended.code == 0, ended.err
    return json.loads((runner.scripts / name).read_text())


def test_a_trace_holds_whole_steps_and_says_nothing_to_the_user(runner: Runner) -> None:
    text = "ask(1); until(told)\nfor _ in range(5): step()\nprint(process.wanted)"
    ended = runner.forked(TRAIN + text)
    told = written(ended, runner)
    assert (told["wanted"], told["error"]) == (1, "")
    assert told["ended_ns"] - told["began_ns"] >= 50_000_000
    marks = [
        event["name"]
        for event in written(ended, runner, "trace.json")["traceEvents"]
        if event.get("ph") == "X" and event["name"].startswith("step ")
    ]
    wanted = range(told["first_step"], told["last_step"] + 1)
    assert marks == [f"step {number}" for number in wanted]
    assert (ended.out, ended.err) == ("1\n", "")
    assert [row["step"] for row in ended.ring.steps] == list(range(len(ended.ring.steps)))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(
            "with torch.profiler.profile():\n    ask(1); until(told)",
            "the script has a profiler of its own",
            id="the script profiles itself",
        ),
        pytest.param(
            "ask(1, path='no/trace.json')\n"
            "until(lambda: process.wanted == 1)\n"
            "ask(2); until(told)",
            "",
            id="a trace that cannot be written costs itself only",
        ),
        pytest.param(
            "ask(1, path='late.json', late=0)\n"
            "until(lambda: process.wanted == 1)\n"
            "assert not told('late.json')\n"
            "ask(2); until(told)",
            "",
            id="a wish that has come too late is passed over",
        ),
    ],
)
def test_training_goes_on_whatever_a_trace_does(runner: Runner, text: str, error: str) -> None:
    more = "\nfor _ in range(5): step()\nprint('done')"
    ended = runner.forked(TRAIN + text + more, env={"KINETO_LOG_LEVEL": "6"})
    assert error in written(ended, runner)["error"]
    assert (ended.out, ended.err) == ("done\n", "")
