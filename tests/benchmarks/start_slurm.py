"""From the command to the first all-reduce on two hosts of a real Slurm: distconsole, and srun and
sbatch typed on the login host by ssh. It trains nothing.

A job that sbatch submits waits for Slurm's next round of scheduling, one of srun does not: what is
submitted is held against sbatch, what runs in a job against srun.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import rows_of_turns
from benchmarks.cluster import SECONDS, environment, on_hosts, over_ssh, warm
from benchmarks.measure import Compared, compare, methods
from benchmarks.start import FIRST_PORT, until_all
from suite.obstacles import obstacle
from testbed import Testbed
from testbed.keeper import wait_for
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

TARGET = 1.2

SCRIPT = """\
import os
import time

began_ns = time.time_ns()
os.environ["RANK"], os.environ["WORLD_SIZE"] = os.environ["SLURM_PROCID"], os.environ["SLURM_NTASKS"]
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print(f"began at {began_ns}, first all-reduce at {time.time_ns()}", flush=True)
assert total.item() == 2
dist.destroy_process_group()
"""

LINES = (
    Compared("start, in a Slurm job", "inside", "srun", "srun", ratio=TARGET),
    Compared("start, --slurm submits", "submitted", "sbatch", "sbatch", ratio=TARGET),
    Compared("start, srun that allocates", "allocating"),
)


class Starts:
    """The ways to start one rank on each node; every agent runs already."""

    def __init__(self, slurm: Slurm, folder: Path) -> None:
        self._slurm = slurm
        self._bed = slurm.bed
        self._folder = folder
        self._port = FIRST_PORT
        self._script = str(folder / "first_slurm.py")
        Path(self._script).write_text(SCRIPT)
        warm(self._bed, folder)
        allocated = slurm.login.exec(["salloc", "-N2", "--no-shell"]).stderr
        self._job = allocated.split()[-1]

    def srun(self) -> float:
        """In an allocation that is there."""
        return self._seconds(self._typed(self._srun("--jobid", self._job, "--overlap")))

    def allocating(self) -> float:
        return self._seconds(self._typed(self._srun()))

    def sbatch(self) -> float:
        """What the job prints comes by ssh as well, as a person would look at it."""
        out, file = self._folder / "out", self._folder / "job.sh"
        file.write_text(f"#!/bin/bash\nsrun python3 {self._script}\n")
        out.write_text("")
        submit = f"sbatch -N2 -n2 --ntasks-per-node=1 --open-mode=append -o {out} {file}"
        look = f"timeout 60 tail -f {out} | grep -m 2 --line-buffered first"
        seconds = self._seconds(self._typed(f"{submit} && {look}"))
        self._wait_for_queue()
        return seconds

    def submitted(self) -> float:
        login = self._slurm.login.name
        seconds = self._seconds(self._ours("--slurm-login", login, "--slurm", "-N2"))
        self._wait_for_queue()
        return seconds

    def _wait_for_queue(self) -> None:
        assert wait_for(lambda: self._slurm.queue() == [self._job], SECONDS), "the job goes on"

    def inside(self) -> float:
        nodes = ",".join(node.name for node in self._slurm.nodes)
        job = {"SLURM_JOB_ID": self._job, "SLURM_JOB_NODELIST": nodes}
        return self._seconds(self._ours("--hosts", nodes), job)

    def _srun(self, *options: str) -> str:
        words = ("srun", *options, "-N2", "-n2", "--ntasks-per-node=1", "python3", self._script)
        return " ".join(words)

    def _typed(self, line: str) -> list[str]:
        """Return what a person types to have the login host do ``line``."""
        self._port += 1
        address = self._slurm.nodes[0].address
        variables = f"MASTER_ADDR={address} MASTER_PORT={self._port} GLOO_SOCKET_IFNAME=eth0"
        return over_ssh(self._bed, self._slurm.login.name, f"export {variables}; {line}")

    def _ours(self, *options: str) -> list[str]:
        program = str(Path(sys.executable).with_name("distconsole"))
        config = ("--ssh-config", str(self._bed.ssh_config))
        return [program, "run", *config, *options, self._script]

    def _seconds(self, command: list[str], extra: dict[str, str] | None = None) -> float:
        """Return seconds from the command until the last rank had its sum."""
        variables = {**environment(self._folder), **(extra or {})}
        _, to_sum = until_all([command], variables, len(self._slurm.nodes))
        return to_sum


@on_hosts(3, partial(obstacle, "slurm"), environment=SLURM_ENVIRONMENT)
def measure(bed: Testbed, folder: Path, rounds: int = 7) -> dict[str, Any]:
    """Start each kind once a round and return seconds, and ratios within the same round."""
    with Slurm(bed) as slurm:
        kinds = ("srun", "inside", "sbatch", "submitted", "allocating")
        ways = methods(Starts(slurm, folder), kinds)
        return compare(ways, rounds, LINES, warmed=lambda: None)


rows = rows_of_turns
