"""Ranks that torchrun or the script itself starts: their lines, their failures, nothing left behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from distconsole.model.events import EndState, LogLine, RankChanged, RankState, RunFinding
from distconsole.model.requests import LauncherName, Run
from distconsole.operations import SessionSource
from suite.driving import Operator

pytestmark = pytest.mark.torch_ranks

GONE_SECONDS = 5.0
"""Generous: what is shown is that nothing waits for torchrun's 30 s or the script's 300 s."""


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def left_by_torchrun() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("torchelastic_*")}


SPEAK = """
import os, sys, time
rank = int(os.environ["RANK"])
for step in range(50):
    sys.stdout.write(f"\\rrank {rank}: {step}/50")
    sys.stdout.flush()
print()
sys.stdout.write(f"half of rank {rank}, "); sys.stdout.flush(); time.sleep(0.3)
print("and the rest")
print("to stderr", file=sys.stderr)
"""


def test_lines_of_torchruns_ranks_have_their_rank(sessions: SessionSource, tmp_path: Path) -> None:
    before = left_by_torchrun()
    request = Run(script(tmp_path, SPEAK), nproc="2", launcher=LauncherName.TORCHRUN)
    with Operator(request, sessions) as run:
        assert run.end(150).exit_code == 0, run.lines()
    for rank in range(4):
        lines = [e for e in run.of(LogLine) if e.rank == rank and not e.transient]
        out = [e.line for e in lines if e.stream == "out"]
        assert out == [f"rank {rank}: 49/50", f"half of rank {rank}, and the rest"]
        assert [e.line for e in lines if e.stream == "err"] == ["to stderr"]
    assert left_by_torchrun() == before


FAIL = """
import os, sys, time, signal
rank = int(os.environ["RANK"])
print("up", flush=True)
if rank == 3:
    time.sleep(0.5)
    {how}
time.sleep(300)
"""


@pytest.mark.parametrize(
    ("how", "exit_code", "error"),
    [
        ("raise ValueError('boom')", 1, "ValueError: boom"),
        ("sys.exit('no data')", 1, "no data"),
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
    ],
)
def test_a_rank_below_torchrun_that_fails_is_blamed_with_its_own_exit_code(
    sessions: SessionSource, tmp_path: Path, how: str, exit_code: int, error: str
) -> None:
    path = script(tmp_path, FAIL.format(how=how))
    with Operator(Run(path, nproc="2", launcher=LauncherName.TORCHRUN), sessions) as run:
        end = run.end(150)
    first = end.first_failure
    assert first, end
    assert (end.state, end.exit_code) == (EndState.FAILED, exit_code)
    assert (first.rank, first.host, first.error) == (3, "node2", error)
    if "raise" in how:
        (finding,) = [each for each in run.of(RunFinding) if each.check == "run.first_failure"]
        assert how in finding.seen
    states = (RankState.FAILED, RankState.KILLED, RankState.EXITED)
    ended = {each.rank: each.t for each in run.of(RankChanged) if each.state in states}
    assert set(ended) == {0, 1, 2, 3}
    assert max(ended.values()) - min(ended.values()) < GONE_SECONDS


SPAWN = """
import os, time
import torch.multiprocessing as mp
import torch.distributed as dist

def work(local_rank):
    node = int(os.environ["NODE_RANK"])
    rank = node * 2 + local_rank
    dist.init_process_group(
        "gloo", f"tcp://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        rank=rank, world_size=4,
    )
    dist.barrier()
    if rank == 3:
        raise RuntimeError("spawned and lost")
    time.sleep(300)

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


def test_a_spawned_rank_that_raises_is_blamed_by_its_own_number(
    sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(Run(script(tmp_path, SPAWN)), sessions) as run:
        end = run.end(150)
    first = end.first_failure
    assert first, end
    assert (first.rank, first.host) == (3, "node2")
    assert first.error == "RuntimeError: spawned and lost"
    assert 'raise RuntimeError("spawned and lost")' in first.traceback
    assert end.exit_code == 1


PARALLEL = """
import torch
model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(torch.ones(8, 4)), torch.ones(8, 1)).backward()
    optimizer.step()
print("done")
"""


def test_a_data_parallel_script_is_one_process_a_node(
    sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(Run(script(tmp_path, PARALLEL)), sessions) as run:
        assert run.end(150).exit_code == 0, run.lines()
    assert sorted((e.host, e.rank, e.line) for e in run.of(LogLine) if e.line == "done") == [
        ("node1", 0, "done"),
        ("node2", 1, "done"),
    ]
