"""From the command to the end of the first step of DDP on two hosts: in a podman container that runs, in a new one
for each rank, and without any. Agents run.
"""

import sys
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import on_hosts
from benchmarks.measure import Compared
from benchmarks.start import Starts, Times
from suite.podman import NEW, RUNNING, install_podman, lacks_podman
from testbed import Testbed

TARGET = 1.2

SCRIPT = """\
import time

began_ns = time.time_ns()
import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(16, 64)).square().mean().backward()
optimizer.step()
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
dist.destroy_process_group()
"""

LINES = (
    Compared("start, podman, a running container", "running", "bare", "bare", ratio=TARGET),
    Compared("start, podman, a new one for each rank", "new", "bare", "bare"),
)


class ContainerStarts(Starts):
    """One rank on each host."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        super().__init__(bed, folder)
        self._step = self._write("first_step.py", SCRIPT)

    def bare(self) -> Times:
        return self._first_step()

    def running(self) -> Times:
        return self._first_step("--container", RUNNING)

    def new(self) -> Times:
        return self._first_step("--container", NEW)

    def _first_step(self, *where: str) -> Times:
        return self._warm(*where, "--python", sys.executable, script=self._step)


@on_hosts(2, lacks_podman)
def measure(bed: Testbed, folder: Path, rounds: int = 7) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    for host in bed.hosts:
        install_podman(host)
    return ContainerStarts(bed, folder).compare(("bare", "running", "new"), rounds, LINES)


rows = rows_of_turns
