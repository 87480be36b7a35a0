"""Ranks that a real srun starts on two hosts find each other by Slurm's variables alone."""

import sys
from pathlib import Path

import pytest

from suite.lean_torch import LEAN_TORCH
from testbed import Testbed
from testbed.slurm import SLURM_ENVIRONMENT, Slurm

pytestmark = [pytest.mark.testbed, pytest.mark.slurm, pytest.mark.torch_ranks]

SCRIPT = f"""{LEAN_TORCH}
import os, socket, sys
from distconsole_training import reduce_sum, setup

def told(**arguments):
    with setup(**arguments) as world:
        total = reduce_sum(world.rank + 1)
        print(world.rank, world.local_rank, world.world_size, world.launcher.value, total,
              socket.gethostname(), flush=True)

if "SLURM_STEP_ID" not in os.environ:
    told()
else:
    told()
    told(init_method="file://" + sys.argv[1])
"""


def test_srun_starts_ranks_that_meet_by_name_and_in_a_file(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    with Testbed(3, environment=SLURM_ENVIRONMENT) as bed, Slurm(bed) as slurm:
        command = f"{sys.executable} {script} {tmp_path}/store"
        nodes = sorted(node.name for node in slurm.nodes)
        said = slurm.login.exec(f"srun -N2 -n3 --overcommit {command}").stdout.splitlines()
        batch = tmp_path / "batch.sh"
        batch.write_text(f"#!/bin/sh\n{command}\n")
        submit = f"sbatch --wait -N2 -n2 --overcommit -o {tmp_path}/out {batch}"
        slurm.login.exec(submit, timeout=180)  # sbatch looks for the end ever more rarely
    told = sorted(line.split() for line in said)
    assert len(told) == 6
    assert [line[:5] for line in told[::2]] == [line[:5] for line in told[1::2]]
    for rank, line in enumerate(told[::2]):
        assert [line[0], *line[2:5]] == [str(rank), "3", "slurm", "6"]
    assert sorted({line[5] for line in told}) == nodes
    assert {line[1] for line in told} == {"0", "1"}
    # The batch script itself is no rank, though Slurm gives it a SLURM_PROCID and the job's tasks.
    assert (tmp_path / "out").read_text().split()[:4] == ["0", "0", "1", "none"]
