"""What a call leaves out when it is too long, and a rank that the kernel says nothing about.
What Horovod's stall inspector prints: by Horovod itself, and what it prints of many tensors and ranks.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.protocol import MAX_CALL_BYTES
from distconsole_agent.roll_call import facts, ways
from distconsole_agent.roll_call.calling import (
    LOADER,
    WORKER_SECONDS,
    Seat,
    bounded,
    call_ranks,
    parse_stalls,
    read_stalls,
)
from suite.lean_torch import LEAN_TORCH


def thread(number: int) -> dict[str, Any]:
    frame = {"function": "f" * 500, "file": "/" + "d" * 500, "line": 1}
    return {"name": str(number), "tid": 0, "main": number == 0, "frames": [dict(frame)] * 64}


def test_a_long_call_keeps_the_innermost_frames_of_the_main_thread() -> None:
    call = {"rank": 1, "alive": True, "threads": [thread(n) for n in range(32)], "collectives": []}
    kept = bounded(json.loads(json.dumps(call)))
    assert len(json.dumps(kept)) <= MAX_CALL_BYTES
    assert kept["threads"][0]["main"]
    assert kept["threads"][0]["frames"][:4] == call["threads"][0]["frames"][:4]  # type: ignore[index]


def test_a_call_that_cannot_be_cut_says_who_it_is() -> None:
    call = {"rank": 1, "local_rank": 0, "pid": 7, "t": 1.0, "alive": True, "note": "x" * 4096}
    assert bounded(call, 1024) == {key: call[key] for key in call if key != "note"}


def test_a_process_that_is_gone_is_not_alive_and_costs_nobody_anything(tmp_path: Path) -> None:
    seats = [Seat(pid, {"rank": rank}, "") for rank, pid in enumerate((None, 2**22, os.getpid()))]
    told = call_ranks(seats, str(tmp_path), 1.0)
    assert [call["alive"] for call in told] == [False, False, True]
    assert [call["rank"] for call in told] == [0, 1, 2]


def test_what_a_rank_uses_is_measured_before_others_are_started_to_read_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    order: list[str] = []
    look = facts.look
    monkeypatch.setattr(facts, "look", lambda pid: order.append("look") or look(pid))
    reads = ("py-spy", lambda: order.append("read"))
    monkeypatch.setattr(ways, "from_outside", lambda *_: (reads,))
    call_ranks([Seat(os.getpid(), {"rank": 0}, "")], str(tmp_path), 1.0)
    assert order == ["look", "look", "read"]


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_workers_of_a_loader_that_cannot_be_read_leave_time_for_others_and_for_the_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float
) -> None:
    given: dict[int, float] = {}

    def from_outside(pid: int, _state: str, left: Any) -> Any:
        given[pid] = left()
        frame = {"function": "__next__", "file": f"/x/{LOADER}", "line": 1}
        return (("py-spy", lambda: [{**thread(0), "frames": [frame]}]),)

    monkeypatch.setattr(ways, "from_outside", from_outside)
    with subprocess.Popen(["sleep", "600"]) as one, subprocess.Popen(["sleep", "600"]) as other:
        (call,) = call_ranks([Seat(os.getpid(), {"rank": 0}, "")], str(tmp_path), seconds)
        one.kill()
        other.kill()
    workers = {one.pid, other.pid}
    assert workers <= {child["pid"] for child in call["children"]}
    # Other tests of this process may have left it other children.
    given = {pid: most for pid, most in given.items() if pid in workers}
    assert given == (dict.fromkeys(workers, WORKER_SECONDS) if seconds else {})


COMPLAINT = """\
epoch 1
[2026-11-24 04:46:51.504090: W /tmp/horovod/common/stall_inspector.cc:107] One or more tensors were submitted to be \
reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. \
This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is \
submitting tensors, which will cause deadlock.
Missing ranks:
0: [grad.1, grad.2 ...]
3!: [grad.2]
"""

HANG = f"""{LEAN_TORCH}
import time, horovod.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(4), name="old")
if hvd.rank() == 1:
    time.sleep(4)
hvd.allreduce(torch.ones(4), name="new")
"""


@pytest.mark.mpi
@pytest.mark.horovod
def test_what_horovod_itself_prints_over_mpi_is_read(tmp_path: Path) -> None:
    """Over Gloo it prints nothing, whatever hangs (horovod 0.28.1, gloo_controller.cc: ``reserve`` for ``resize``)."""
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    done = subprocess.run(
        (*mpirun, sys.executable, "-c", HANG),
        env={**os.environ, "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=170, cwd=tmp_path,
    )  # fmt: skip
    told = parse_stalls(done.stderr)
    assert told == {"stalled": ["allreduce.new"], "missing": {"allreduce.new": [1]}}, done.stderr


def test_the_last_complaint_names_tensors_and_who_has_not_submitted_them() -> None:
    told = parse_stalls(COMPLAINT.replace("grad", "old") + COMPLAINT + "\nepoch 2\n")
    assert told == {"stalled": ["grad.1", "grad.2"], "missing": {"grad.1": [0], "grad.2": [0, 3]}}


def test_a_log_that_has_not_grown_since_the_last_step_tells_nothing_of_now(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.err"
    assert read_stalls(str(log), 60.0) is None
    log.write_text(COMPLAINT)
    assert read_stalls(str(log), 60.0) is not None
    os.utime(log, (0, 0))
    assert read_stalls(str(log), 60.0) is None
    assert parse_stalls("Missing ranks:\nnone") is None
