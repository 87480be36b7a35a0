"""Real elastic Horovod on three hosts of the testbed: what the run outlives, and how it ends."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model.requests import Run, Where
from distconsole.model.run_events import (
    EndState,
    LogLine,
    Metric,
    PlanMade,
    RankChanged,
    RankState,
    RunFinding,
    Window,
)
from distconsole.operations.control import StopReason
from distconsole.session import open_session
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH
from suite.remains import gone
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.horovod]

STEPS, COMMIT, BREAKS = 16, 4, 6

SCRIPT = f"""{LEAN_TORCH}
import os, signal, time
import horovod.torch as hvd
hvd.init()
began = hvd.rank()
{{make}}

@hvd.elastic.run
def train(state):
    print("from", state.step, "as", hvd.rank(), "of", hvd.size(), flush=True)
    while state.step < {STEPS}:
        if (state.step, began) == ({BREAKS}, 1):
            {{how}}
        make_step()
        state.done = [*state.done, state.step]
        state.step += 1
        time.sleep(0.05)
        if state.step % {COMMIT} == 0:
            state.commit()
    print("done", *state.done, flush=True)

train(hvd.elastic.TorchState(**kept, step=0, done=[]))
"""

LEARNING = """
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
kept = dict(model=model, optimizer=optimizer)

def make_step():
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.ones(8, 4)), torch.ones(8, 1)).backward()
    optimizer.step()
"""

SUMMING = """
kept = {}

def make_step():
    hvd.allreduce(torch.ones(1), name="sum")
"""
"""For what does not depend on the steps' figures: an optimizer imports for a second in each rank."""

ALL_STEPS_ONCE = f"done {' '.join(map(str, range(STEPS)))}"
RESTORED = BREAKS // COMMIT * COMMIT
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
WAIT = "print('waits', flush=True); time.sleep(300)"


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Testbed]:
    """Hosts that stay up through all tests of this file."""
    with Testbed(hosts=3, prefix="ela") as bed:
        yield bed


def request(
    bed: Testbed,
    folder: Path,
    how: str,
    *,
    make: str = SUMMING,
    slots: str = "1",
    nnodes: str | None = None,
    count: int = 3,
) -> Run:
    path = folder / "train.py"
    path.write_text(SCRIPT.format(how=how, make=make))
    first, *others = (host.name for host in bed.hosts[:count])
    hosts = ",".join([first, f"{others[0]}:{slots}", *others[1:]])
    where = Where(ssh_config=str(bed.ssh_config), hosts=hosts)
    # A rank that was not connected to the one that died begins anew after so long.
    env = (("HOROVOD_GLOO_TIMEOUT_SECONDS", "2"),)
    return Run(str(path), where=where, env=env, nnodes=nnodes)


def said(run: Operator, rank: int) -> list[str]:
    return [e.line for e in run.of(LogLine) if (e.rank, e.stream) == (rank, "out")]


def test_a_killed_rank_leaves_the_others_training(three_hosts: Testbed, tmp_path: Path) -> None:
    """Horovod gives up the host, so the rank beside the one that died goes too."""
    name = three_hosts.hosts[1].name
    asked = request(three_hosts, tmp_path, KILL, make=LEARNING, slots="2")
    with Operator(asked, open_session) as run:
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    assert "elastic" in run.of(PlanMade)[0].why
    for rank, place in ((0, 0), (3, 1)):
        assert said(run, rank) == [
            f"from 0 as {rank} of 4",
            f"from {RESTORED} as {place} of 2",
            ALL_STEPS_ONCE,
        ]
    found = {each.check: each for each in run.of(RunFinding)}
    lost, beside = (each for each in run.of(RunFinding) if each.check == "run.rank_lost")
    assert (beside.severity, beside.rank) == ("info", 2)
    assert (lost.severity, lost.rank, lost.hosts) == ("warn", 1, (name,))
    assert lost.summary.startswith(f"rank 1 on {name} failed: killed by SIGKILL; Horovod goes on")
    assert found["run.world_size"].summary.startswith("Horovod goes on with 2 of 4 ranks")
    assert "run.first_failure" not in found
    ended = {e.rank: (e.state, e.exit_code) for e in run.of(RankChanged) if e.exit_code}
    assert ended[1] == (RankState.KILLED, 137)
    assert set(ended) == {1, 2}
    assert sum(window.steps for window in run.of(Window) if window.rank == 3) >= STEPS
    assert max(run.of(Metric), key=lambda metric: metric.step).ranks == 2
    assert not gone(*three_hosts.hosts)


def test_a_lost_node_leaves_the_others_training(three_hosts: Testbed, tmp_path: Path) -> None:
    node = three_hosts.hosts[1]
    asked = request(three_hosts, tmp_path, WAIT, nnodes="2:3")
    with Operator(asked, open_session) as run:
        run.see(LogLine, lambda line: line.line == "waits")  # so every rank has committed
        assert node.signal(signal.SIGKILL, "shim --run")
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.SUCCEEDED, 0), run.lines()
    for rank, place in ((0, 0), (2, 1)):
        assert said(run, rank)[1:] == [f"from {RESTORED} as {place} of 2", ALL_STEPS_ONCE]
    checks = {each.check: each for each in run.of(RunFinding)}
    assert checks["run.node_lost"].hosts == (node.name,)
    assert checks["run.node_lost"].severity == "warn"
    assert "run.world_size" in checks
    assert not gone(*three_hosts.hosts)


def test_with_too_few_hosts_left_the_rank_that_failed_first_is_blamed(
    three_hosts: Testbed, tmp_path: Path
) -> None:
    asked = request(three_hosts, tmp_path, KILL, nnodes="2", count=2)
    with Operator(asked, open_session) as run:
        end = run.ended()
    assert (end.state, end.exit_code) == (EndState.FAILED, 137)
    assert end.first_failure
    assert (end.first_failure.rank, end.first_failure.host) == (1, three_hosts.hosts[1].name)
    assert end.first_failure.error == "killed by SIGKILL"
    checks = {each.check for each in run.of(RunFinding)}
    assert not checks & {"run.rank_lost", "run.world_size"}
    assert not gone(*three_hosts.hosts)


# What its shims do is in test_shim_elastic.
@pytest.mark.campaign
def test_a_run_that_is_stopped_leaves_nothing(three_hosts: Testbed, tmp_path: Path) -> None:
    with Operator(request(three_hosts, tmp_path, "time.sleep(300)"), open_session) as run:
        run.see(LogLine, lambda line: line.line == "from 0 as 1 of 3")
        run.control.stop(StopReason.INTERRUPT)
        end = run.end(30)
        run.finish()
    assert (end.state, end.exit_code) == (EndState.STOPPED, 128 + signal.SIGINT)
    assert not gone(*three_hosts.hosts)
