"""Jobs by torchrun that may lose hosts: rounds of real ranks on hosts that really go."""

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import UNSET

from distconsole.model.events import Narration
from distconsole.model.findings import Severity
from distconsole.model.requests import LauncherName, Run, Where
from distconsole.model.run_events import EndState, LogLine, RankChanged, RankState, RunFinding
from distconsole.operations import SessionSource
from distconsole.session import open_session
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH
from testbed import Testbed
from testbed.keeper import wait_for

ROUND_SECONDS = 150.0
"""Generous: torchrun alone waits 19 s for a node that is gone, and then all ranks import torch."""

ROUNDS = f"""
import os, pathlib, sys, time

rank, world, again = (
    int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
)
enough = pathlib.Path(sys.argv[1])
if again == 0:
    print(f"rank {{rank}} of {{world}}, restart 0", flush=True)
    raised = enough.with_name("raised")
    if rank == world - 1:
        raised.touch()
        raise ValueError("only once")
    while not raised.exists():
        time.sleep(0.02)
    time.sleep(0.2)
    raise RuntimeError("Connection closed by peer")  # as a collective of Gloo
{LEAN_TORCH}
import torch.distributed as dist

dist.init_process_group("gloo")
print(f"rank {{rank}} of {{world}}, restart {{again}}", flush=True)
more = torch.ones(1)
while more:
    more.fill_(not enough.exists())
    dist.broadcast(more, 0)
    time.sleep(0.02)
dist.destroy_process_group()
"""


def script(folder: Path) -> str:
    path = folder / "rounds.py"
    path.write_text(ROUNDS)
    return str(path)


def says(line: str) -> Callable[[LogLine], bool]:
    return lambda event: event.line == line


@pytest.mark.testbed
@pytest.mark.torch_ranks
def test_a_job_goes_on_after_a_failure_and_without_a_host_that_is_lost(
    tmp_path: Path, lean: dict[str, str]
) -> None:
    enough = tmp_path / "enough"
    with Testbed(4) as bed:
        bed.hosts[3].stop_sshd()
        request = Run(
            script(tmp_path),
            (str(enough),),
            where=Where(hosts=bed.names, ssh_config=str(bed.ssh_config)),
            env=tuple(lean.items()),
            nnodes="2:4",
            max_restarts=2,
        )
        with Operator(request, open_session) as run:
            assert run.see(Narration, lambda said: "node4 is left out" in said.text)
            run.see(LogLine, says("rank 2 of 3, restart 0"), ROUND_SECONDS)
            run.see(LogLine, says("rank 2 of 3, restart 1"), ROUND_SECONDS)
            bed.ssh("node2", "pkill -KILL -f '[p]yz agent'; pkill -KILL -f '[p]yz shim'")
            lost = run.see(RunFinding, lambda found: found.check == "run.node_lost")
            moved = run.see(LogLine, says("rank 1 of 2, restart 2"), ROUND_SECONDS)
            enough.touch()
            end = run.ended()
        assert wait_for(lambda: not any(host.processes("rounds.py") for host in bed.hosts), 10)
    assert (lost.severity, lost.hosts) == (Severity.WARN, ("node2",))
    assert lost.summary.endswith("the run goes on with 2 of 3 nodes")
    assert (moved.host, moved.rank) == ("node3", 1)
    assert (end.state, end.exit_code, end.first_failure) == (EndState.SUCCEEDED, 0, UNSET)
    ended = {each.rank: each for each in run.of(RankChanged)}
    assert [(ended[rank].host, ended[rank].state) for rank in (0, 1)] == [
        ("node1", RankState.EXITED),
        ("node3", RankState.EXITED),
    ]
    assert ended[2].state in (RankState.EXITED, RankState.FAILED)  # torchrun ended it, unseen
    assert ended[2].exit_code is UNSET


# test_every_launcher has it below torchruns of a fixed number.
@pytest.mark.campaign
@pytest.mark.torch_ranks
def test_a_rank_that_raises_ends_a_job_that_may_not_begin_again(
    sessions: SessionSource, tmp_path: Path, lean: dict[str, str]
) -> None:
    request = Run(
        script(tmp_path),
        (str(tmp_path / "never"),),
        env=tuple(lean.items()),
        nproc="1",
        nnodes="1:2",
        launcher=LauncherName.TORCHRUN,
    )
    with Operator(request, sessions) as run:
        end = run.end(150)
    assert (end.state, end.exit_code) == (EndState.FAILED, 1)
    assert end.first_failure
    assert (end.first_failure.rank, end.first_failure.host) == (1, "node2")
    assert end.first_failure.error == "ValueError: only once"
    (finding,) = [each for each in run.of(RunFinding) if each.check == "run.first_failure"]
    assert "raise ValueError" in finding.seen
