"""Real Horovod over Gloo on two hosts of the testbed that cannot ssh to each other: how it runs and ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from distconsole.errors import PlanError
from distconsole.model.events import (
    EndState,
    LogLine,
    PlanMade,
    Window,
)
from distconsole.model.requests import Run, Where
from distconsole.operations.control import StopReason
from distconsole.session import open_session
from suite.blame import assert_rank_2_is_blamed
from suite.driving import Operator
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.horovod]

WORLD = 3

TRAIN = """
import os, signal, subprocess, sys, time
sys.path.insert(0, os.path.expanduser("~/lib"))
import torch
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()

def total():
    return int(hvd.allreduce(torch.tensor([10 ** rank]), op=hvd.Sum).item())
"""

SUCCEED = """
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for _ in range(12):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.ones(8, 4)), torch.ones(8, 1)).backward()
    optimizer.step()
    time.sleep(0.05)
print(total(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
hvd.shutdown()
hvd.init()
print("again", total())
"""

BREAK = """
print(total(), flush=True)
if rank == 2:
    {how}
elif rank == 0:
    subprocess.Popen(["setsid", "sleep", "4321"])
total()
time.sleep(300)
"""


def request(bed: Testbed, folder: Path, text: str, setup: str | None = None) -> Run:
    path = folder / "train.py"
    path.write_text(TRAIN + text)
    where = Where(ssh_config=str(bed.ssh_config), hosts="node1:2,node2:1", setup=setup)
    return Run(str(path), where=where)


def test_every_rank_sums_and_is_watched_on_hosts_of_different_size(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    with Operator(request(standing_bed, tmp_path, SUCCEED), open_session) as run:
        end = run.end()
        run.finish()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert run.of(PlanMade)[0].launcher == "horovod"
    lines = {(e.rank, e.host, e.line) for e in run.of(LogLine) if e.stream == "out"}
    assert lines == {
        (0, "node1", "111 3 0 2 0 2"),
        (1, "node1", "111 3 1 2 0 1"),
        (2, "node2", "111 3 0 1 1 2"),
        *((rank, host, "again 111") for rank, host in enumerate(("node1", "node1", "node2"))),
    }
    for rank in range(WORLD):
        assert sum(window.steps for window in run.of(Window) if window.rank == rank) == 12
    assert not gone(*standing_bed.hosts)


@pytest.mark.parametrize(
    ("how", "exit_code", "error"),
    [
        ("raise ValueError('no such layer')", 1, "ValueError: no such layer"),
        ("os._exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by SIGSEGV"),
        ("import only_on_node1", 1, "ModuleNotFoundError: No module named 'only_on_node1'"),
    ],
)
def test_the_rank_that_failed_is_blamed_and_everything_ends(
    standing_bed: Testbed, tmp_path: Path, how: str, exit_code: int, error: str
) -> None:
    library = standing_bed.hosts[0].path("/run/home/lib")
    library.mkdir(exist_ok=True)
    (library / "only_on_node1.py").write_text("")
    with Operator(request(standing_bed, tmp_path, BREAK.format(how=how)), open_session) as run:
        end = run.end()
        run.finish()
    assert_rank_2_is_blamed(run, end, how, exit_code, error)
    assert not gone(*standing_bed.hosts)


def test_ranks_that_hang_are_stopped(standing_bed: Testbed, tmp_path: Path) -> None:
    hanging = BREAK.format(how="time.sleep(300)")
    with Operator(request(standing_bed, tmp_path, hanging), open_session) as run:
        for rank in range(WORLD):
            run.see(LogLine, lambda e, rank=rank: (e.rank, e.line) == (rank, "111"))
        run.control.stop(StopReason.INTERRUPT)
        end = run.end(30)
        run.finish()
    assert (end.state, end.exit_code) == (EndState.STOPPED, 128 + signal.SIGINT)
    assert not gone(*standing_bed.hosts)


def test_a_name_that_means_loopback_is_refused_before_anything_starts(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    node2 = standing_bed.hosts[1]
    node2.wrong_etc_hosts()
    try:
        with Operator(request(standing_bed, tmp_path, ""), open_session) as run:
            with pytest.raises(PlanError, match="node2: its own name means 127") as caught:
                run.finish()
            assert not run.of(PlanMade)
    finally:
        node2.mend_etc_hosts()
    assert f"{node2.address} in /etc/hosts on node2" in caught.value.hint


def test_a_host_without_horovod_is_named(standing_bed: Testbed, tmp_path: Path) -> None:
    node2 = standing_bed.hosts[1]
    asked = request(standing_bed, tmp_path, "", setup="export PYTHONPATH=~/hides")
    hides = node2.path("/run/home/hides")
    hides.mkdir()
    (hides / "horovod.py").write_text("raise ImportError('none here')")
    with (
        Operator(asked, open_session) as run,
        pytest.raises(PlanError, match="Horovod is missing on node2") as caught,
    ):
        run.finish()
    assert "check --only horovod" in caught.value.hint
