"""Slow ranks whose cause is real: a disk that is waited for, and a DataLoader with one busy worker."""

from pathlib import Path

import pytest

from distconsole.model.requests import Run
from distconsole.model.run_events import RunFinding, Window
from distconsole.operations import SessionSource
from suite.driving import Operator
from suite.lean_torch import LEAN_TORCH

TRAINING = f"""{LEAN_TORCH}
import os, subprocess, time, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, index):
        time.sleep({{work}} * 0.88)
        until = time.thread_time() + {{work}} * 0.12
        while time.thread_time() < until:
            pass
        return torch.ones(8)

torch.set_num_threads(1)
dist.init_process_group("gloo")
slow = dist.get_rank() == 1
model = DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
workers = {{workers}} if slow else 0
if slow and {{disk}}:
    os.mkfifo({{pipe!r}})
    subprocess.Popen(["sh", "-c", "while sleep 0.4; do : > {{pipe}}; done"])  # looked at once a second: nearly all of a step
for batch in DataLoader(Numbers() if slow and workers else torch.ones(1 << 20, 8), 1, num_workers=workers):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if slow and {{disk}}:  # until its child has another program it is in state D: here until the pipe is opened
        opens = (os.POSIX_SPAWN_OPEN, 0, {{pipe!r}}, os.O_RDONLY, 0)
        os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opens]), 0)
    time.sleep(0.005)
"""


def run_of(tmp_path: Path, *, work: float = 0.0, workers: int = 0, disk: bool = False) -> Run:
    script = tmp_path / "train.py"
    pipe = str(tmp_path / "pipe")
    script.write_text(TRAINING.format(work=work, workers=workers, disk=disk, pipe=pipe))
    return Run(str(script), nproc="1")


@pytest.mark.timeout(120)
def test_a_rank_that_is_in_state_d_waits_for_a_disk(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(run_of(tmp_path, disk=True), standing_sessions) as run:
        finding = run.see(RunFinding, lambda found: found.check == "run.straggler")
        assert (finding.rank, finding.kind) == (1, "disk")
        assert "it waits for a disk 100 % of the time, the others 0 %" in finding.summary


@pytest.mark.timeout(120)
def test_the_one_worker_of_a_rank_that_waits_for_its_data_is_seen_at_work(
    standing_sessions: SessionSource, tmp_path: Path
) -> None:
    with Operator(run_of(tmp_path, work=0.1, workers=1), standing_sessions) as run:
        finding = run.see(RunFinding, lambda found: found.check == "run.straggler")
        assert finding.rank == 1
        told = [(each.rank, *each.workers) for each in run.of(Window) if each.workers]
        assert {(rank, count) for rank, count, _, _ in told} == {(1, 1)}
        assert max(busy for _, _, busy, _ in told) > 1.0
