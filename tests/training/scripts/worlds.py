"""Enters one world after the other, each found in another way, and says what each was like."""

import json
import os
import sys
import time
import weakref
from pathlib import Path

import torch

from distconsole_training import SetupError, barrier, reduce_mean, reduce_sum, setup

rank = int(os.environ["RANK"])
size = int(os.environ["WORLD_SIZE"])
port, shared, results = sys.argv[1], sys.argv[2], Path(os.environ["RESULTS"])
said = {}


def enter(name, **arguments):
    with setup(**arguments) as world:
        barrier()
        group = weakref.ref(torch.distributed.group.WORLD)
        said[name] = {
            "world": [world.rank, world.local_rank, world.world_size],
            "backend": world.backend,
            "launcher": world.launcher.value,
            "whole": reduce_sum(rank + 1),
            "number": reduce_sum(0.1),
            "bytes": reduce_sum(torch.tensor([200, rank], dtype=torch.uint8)).tolist(),
            "mean": reduce_mean(float(rank)),
            "weighed": reduce_mean(float(rank), samples=1 + 2 * rank),
            "silent": reduce_mean(float("nan") if rank else 5.0, samples=0 if rank else 3),
            "halves": str(reduce_mean(torch.tensor([float(rank)], dtype=torch.float16))),
        }
        try:
            setup()
        except SetupError as error:
            said[name]["twice"] = str(error)
    said[name]["kept"] = (
        group() is not None
    )  # or DDP's end may wait for a thread that waits for Python


enter("env")
for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name)
enter("file", init_method=f"file://{shared}", rank=rank, world_size=size)
enter("tcp", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size, local_rank=rank)
os.environ.update(
    SLURM_PROCID=str(rank),
    SLURM_LOCALID=str(rank),
    SLURM_NTASKS="64",
    SLURM_STEP_NUM_TASKS=str(size),
    SLURM_STEP_ID="0",
    SLURM_STEP_NODELIST="localhost",
    SLURM_STEP_NUM_NODES="1",
    SLURM_JOB_ID=str(os.getppid()),
)
enter("slurm")
enter("slurm-file", init_method=f"file://{shared}-again")

# The last one is not closed, and rank 1 is the first to go.
world = setup(init_method=f"file://{shared}-last")
barrier()
(results / f"{rank}.json").write_text(json.dumps(said))
time.sleep(0.2 * (1 - world.rank))
