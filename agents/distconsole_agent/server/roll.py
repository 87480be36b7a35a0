"""Answers ``roll_call``, and calls the ranks of a run that is about to be stopped because it hangs."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.contract.refusal import Refusal, read_call_seconds
from distconsole_agent.node_folder.run_files import read_end

if TYPE_CHECKING:
    from distconsole_agent.journal.roll_calls import RollCalls
    from distconsole_agent.node_folder.runs import Runs

ATTEND_SECONDS = 1.0
"""How long an agent that has just started may take until it attends to a run."""


def answer_roll_call(runs: Runs, request: dict[str, Any]) -> dict[str, Any]:
    """Return where the ranks of a run on this node are; of one that is over there are none.

    Raises Refusal: ``bad_request``, ``no_such_run``, or ``timed_out`` where another agent attends to it.
    """
    seconds = read_call_seconds(request)
    roll = _roll_of(runs, request.get("run"))
    calls = [] if roll is None else roll.call(seconds, "asked")
    return {"ranks": calls, "time_ns": time.time_ns(), "host": os.uname().nodename}


def call_before_stop(runs: Runs, request: dict[str, Any]) -> None:
    """Keep where the ranks are that stand still; a stop at once (``grace`` 0) does not wait for it."""
    if request.get("grace") == 0:
        return
    with contextlib.suppress(Refusal):
        roll = _roll_of(runs, request.get("run"))
        if roll is not None:
            roll.call_before_stop()


def _roll_of(runs: Runs, run: object) -> RollCalls | None:
    """Return who calls the ranks of a run; None where it is over."""
    if read_end(runs.folder(run)) is not None:
        return None
    runs.pick_up()
    until = time.monotonic() + ATTEND_SECONDS
    while time.monotonic() < until:
        active = next((each for each in runs.active if each.run == run), None)
        if active is None or active.journal.ended:
            return None
        if active.roll is not None:
            return active.roll
        time.sleep(0.02)
    raise Refusal(
        ErrorCode.TIMED_OUT,
        f"an agent of another version attends to the run {run} on this node",
        "use the console that started it",
    )
