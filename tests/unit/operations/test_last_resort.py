"""A person who has asked twice is rid of the program, and knows what may be left where."""

import signal
import subprocess
import sys

import pytest

STUCK = """
import signal, sys, threading
from contextlib import suppress
from distconsole.cli import main
from distconsole.operations import last_resort
from distconsole.model.requests import Attach, Check, Run
from distconsole.model.run_events import PlanMade, RankChanged, RankState

def perform(request, sessions, control):
    if not isinstance(request, Check):
        yield PLAN
        for rank, pid in ((0, 4242), (1, 4343), (2, 77)):
            yield RankChanged(t=0.0, run="train-1", rank=rank, host=f"node{rank % 2 + 1}", local_rank=0,
                              pid=pid, state=RankState.RUNNING)
        yield RankChanged(t=0.0, run="train-1", rank=2, host="node1", local_rank=0,
                          pid=77, state=RankState.EXITED, exit_code=0)
    while True:
        with suppress(KeyboardInterrupt, SystemExit):
            sys.stderr.write("stuck\\n")
            threading.Event().wait()  # as a link that hangs while it is closed

PLAN = PlanMade(t=0.0, run="train-1", name="", launcher="torch", why="", world_size=3, script="train.py",
                hosts=())
def raise_here():  # in this thread: the main thread's wait goes on, as after a signal right before it
    for line in sys.stdin:
        signal.raise_signal(int(line))

threading.Thread(target=raise_here, daemon=True).start()
main.perform = perform
last_resort.SAY_SECONDS = 0.3
last_resort.END_SECONDS = 0.1
sys.exit(main.perform_headless({request}))
"""


HEARD = ("stopping", "killing", "leaving", "stuck")
"""A second signal that comes before the first is heard of is one with it."""


@pytest.mark.parametrize(
    ("request_text", "numbers", "exit_code"),
    [
        ("Run(script='train.py')", (signal.SIGTERM, signal.SIGTERM), 143),
        ("Run(script='train.py')", (signal.SIGINT, signal.SIGINT), 130),
        ("Run(script='train.py')", (signal.SIGINT, signal.SIGINT, signal.SIGINT), 130),
        ("Attach(run='train-1')", (signal.SIGINT, signal.SIGINT), 130),
        ("Check()", (signal.SIGINT, signal.SIGTERM), 143),
        ("Check()", (signal.SIGTERM, signal.SIGTERM), 143),
    ],
)
def test_a_second_signal_ends_a_program_that_is_stuck(
    request_text: str, numbers: tuple[int, ...], exit_code: int
) -> None:
    code = STUCK.replace("{request}", request_text)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=pipe, stdout=subprocess.DEVNULL, stderr=pipe, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert process.stdin is not None
            told = [next(line for line in process.stderr if line == "stuck\n")]
            for number in numbers:
                print(int(number), file=process.stdin, flush=True)
                told.append(next(line for line in process.stderr if line.startswith(HEARD)))
            assert process.wait(10) == exit_code
            told += process.stderr.readlines()
        finally:
            process.kill()
    text = "".join(told)
    assert ("leaving; no run is stopped" in text) == ("Attach" in request_text)
    if "Check" in request_text:
        return
    assert "not every host has said that train-1 is over" in text
    assert "node1: rank 0 (pid 4242)\n" in text
    assert "node2: rank 1 (pid 4343)\n" in text
    assert "distconsole stop train-1" in text
