"""What Horovod's stall inspector prints, as it printed it."""

from __future__ import annotations

import os
from pathlib import Path

from distconsole_agent.roll_call.horovod import parse_stalls, read_stalls

COMPLAINT = """\
epoch 1
[2021-02-02 21:19:07.345988: W horovod/common/stall_inspector.cc:105] One or more tensors were submitted to be \
reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for more than 60 seconds. \
This may indicate that different ranks are trying to submit different tensors or that only subset of ranks is \
submitting tensors, which will cause deadlock.
Missing ranks:
0: [grad.1, grad.2 ...]
3!: [grad.2]
"""


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
