#!/usr/bin/env bash
# any() of a sharded DTensor, converted to a number, is the number of ranks that have a True: found_inf is 3, not 1, and
# counts of any(dim) are too large.
#
# Package:  torch 2.13.0, torch.distributed.tensor on gloo, 2 and 3 ranks.
# Expected: "DTensor … provides single-device like abstraction"
#           (https://docs.pytorch.org/docs/2.13/distributed.tensor.html). any: "Tests if any element in input evaluates
#           to True"; the output's dtype is bool (https://docs.pytorch.org/docs/2.13/generated/torch.any.html).
# Seen:     any() leaves a reduction by sum for later. What turns the bool into a number comes before it: each rank
#           converts its own True to 1, and the ones are added. x.isnan().any().float() is 3.0 where three ranks have a
#           NaN; the share of columns with a NaN, any(0).float().mean(), can exceed 1. any() itself, bool(x.any()), all()
#           and count_nonzero() are right. After full_tensor() all are.
# Upstream: no issue found in pytorch/pytorch (#165923, repaired, is on all(); #134206 chose the sum). 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

ASKED = {
    "any()": lambda found: found.any(),
    "any(0).count_nonzero()": lambda found: found.any(0).count_nonzero(),
    "all(0).sum()": lambda found: found.all(0).sum(),
    "any().float()": lambda found: found.any().float(),
    "any(0).long()": lambda found: found.any(0).long(),
    "any(0).sum()": lambda found: found.any(0).sum(),
    "any(0).float().mean()": lambda found: found.any(0).float().mean(),
}
RIGHT = list(ASKED)[:3]


def gradient(world):
    """One row a rank, whose first column is nowhere a number."""
    return torch.tensor([[float("nan"), 1.0]] * world)


def work(rank, world, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}{world}", rank=rank, world_size=world)
    sharded = distribute_tensor(gradient(world), init_device_mesh("cpu", (world,)), [Shard(0)])
    for name, ask in ASKED.items():
        answer = ask(sharded.isnan())
        seen = answer.full_tensor() if isinstance(answer, DTensor) else answer
        if rank == 0:
            results[world, name] = seen.tolist()
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    for world in (2, 3):
        mp.spawn(work, (world, sys.argv[1] + "/store", results), world)
    print("package  torch", torch.__version__, "(DTensor, gloo)")
    print("input    one row a rank, of two columns; the first is NaN in each; found = x.isnan()")
    as_told = True
    for (world, name), seen in results.items():
        expected = ASKED[name](gradient(world).isnan()).tolist()
        print(f"{world} ranks, found.{name:22} expected {expected}, seen {seen}")
        factor = 1 if name in RIGHT else world
        told = [factor * one for one in expected] if isinstance(expected, list) else factor * expected
        as_told &= seen == told
    sys.exit(not as_told)
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
