"""The roll call: what the real agent tells of ranks that wait, each for something else."""

import os
import signal
from typing import Any

from distconsole.model.diagnosis.calls import Call
from distconsole.rpc import wire
from fakes.agents import Bridge, launch, spec_of
from fakes.shims import wait_until

UP = "print('up', flush=True)\n"
READS_A_PIPE = UP + "import os; r, w = os.pipe(); os.read(r, 1)"
COUNTS = UP + "while True: pass"
SLEEPS = UP + "import time; time.sleep(600)"
WAIT = "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)\n"  # it stays a zombie
HAS_DEAD_CHILD = f"import os, time\nif os.fork() == 0: os._exit(3)\n{WAIT}" + SLEEPS
ENDS = UP
OUTSIDE = ("py-spy", "python")
"""The ways that read the memory of a process; which one depends on the version of Python."""


def call(bridge: Bridge, run: str) -> dict[int, dict[str, Any]]:
    told = bridge.done("roll_call", run=run, seconds=1.5)
    assert set(told) == {"ranks", "time_ns", "host"}
    return {each["rank"]: each for each in told["ranks"]}


def waits(found: dict[str, Any]) -> str | None:
    return found["waits_for"] and found["waits_for"]["kind"]


def test_a_rank_is_described_by_what_its_process_waits_for(bridge: Bridge) -> None:
    scripts = [READS_A_PIPE, COUNTS, SLEEPS, HAS_DEAD_CHILD, ENDS]
    launch(bridge, spec_of("wait-run", scripts, watch=True))
    stream = bridge.follow("wait-run")
    up, ended = set(), False
    for entry in stream:
        up |= {entry["rank"]} if entry["kind"] == "log" else set()
        ended = ended or (entry["kind"] == "state" and entry["state"] == "exited")
        if len(up) == len(scripts) and ended:
            break
    found = call(bridge, "wait-run")
    assert {key for each in found.values() for key in each} <= set(Call.__struct_fields__)
    assert waits(found[0]) == "pipe"
    assert (found[1]["state"], waits(found[1])) == ("R", None)
    assert found[1]["main_cpu_s"] > 0
    assert (found[2]["state"], waits(found[2])) == ("S", None)
    assert found[2]["way"] in OUTSIDE
    assert [frame["line"] for frame in found[2]["threads"][0]["frames"]] == [2]
    (child,) = found[3]["children"]
    assert (child["state"], child["ended"]) == ("Z", {"exit_code": 3})
    assert (found[4]["alive"], found[4]["stage"]) == (False, "ended")
    assert found[4]["ended"]["exit_code"] == 0

    os.kill(found[2]["pid"], signal.SIGSTOP)
    wait_until("stopped", lambda: waits(call(bridge, "wait-run")[2]) == "stopped")
    assert call(bridge, "wait-run")[2]["way"] in OUTSIDE
    os.kill(found[2]["pid"], signal.SIGCONT)

    kept = next(each for each in stream if each["kind"] == "roll_call")
    assert (kept["why"], kept["rank"], waits(kept["call"])) == ("asked", 0, "pipe")
    assert wire.check_item("follow", {"entries": [kept], "journal": "a"}).entries
    bridge.done("kill", run="wait-run")


def test_a_run_that_is_over_has_no_ranks_to_call(bridge: Bridge) -> None:
    launch(bridge, spec_of("past-run", ["pass"]))
    bridge.entries("past-run")
    assert call(bridge, "past-run") == {}
    assert bridge.refused("roll_call", run="past-run", seconds="soon") == "bad_request"
    assert bridge.refused("roll_call", run="no-run", seconds=1) == "no_such_run"


def test_a_rank_that_is_not_to_answer_is_only_looked_at(bridge: Bridge) -> None:
    env = {"DISTCONSOLE_ROLL_CALL": "0"}
    launch(bridge, spec_of("mute-run", [SLEEPS], watch=True, env=env))
    next(each for each in bridge.follow("mute-run") if each["kind"] == "log")
    found = call(bridge, "mute-run")[0]
    assert found["alive"]
    assert found["way"] in OUTSIDE
    bridge.done("kill", run="mute-run")
    ended = [each for each in bridge.entries("mute-run") if each["kind"] == "state"]
    assert ended[-1]["signal"] == signal.SIGKILL
