"""What Horovod's stall inspector prints: by Horovod itself, and what it prints of many tensors and ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distconsole_agent.roll_call.calling import parse_stalls, read_stalls

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


HANG = """
import time, torch, horovod.torch as hvd
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
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3")
    done = subprocess.run(
        (*mpirun, sys.executable, "-c", HANG),
        env={**os.environ, "HOROVOD_STALL_CHECK_TIME_SECONDS": "1"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, cwd=tmp_path,
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
