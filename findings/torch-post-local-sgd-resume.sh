#!/usr/bin/env bash
# After PostLocalSGDOptimizer.load_state_dict a learning rate scheduler has no effect: the resumed run trains on with the
# learning rate of the checkpoint, while the scheduler shows another.
#
# Package:  torch 2.13.0 (torch.distributed.optim); one rank shows it.
# Expected: load_state_dict: "This is the same as torch.optim.Optimizer load_state_dict, but also restores model averager's
#           step value" (https://docs.pytorch.org/docs/2.13/distributed.optim.html). It is an Optimizer, as schedulers want.
# Seen:     the wrapper keeps the list param_groups of the optimizer in it; that one's load_state_dict makes new groups, and
#           the wrapper, its schedulers, and code that reads or sets param_groups go on with the old ones. StepLR halves 1.0
#           at each step: saved at 0.125, the run trains on with 0.125, 0.0625, 0.03125; the resumed one with 0.125 each
#           time, whether the scheduler is made before or after the load. No error, no warning. SGD alone and
#           ZeroRedundancyOptimizer are right.
# Upstream: no issue found in pytorch/pytorch; NVIDIA/apex#766 is the same in LARC, closed. 2026-12-01.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/rank.py" <<'EOF'
import sys

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.optim.lr_scheduler import StepLR

SAVED, MORE = 3, 3
OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=1.0),
    "ZeroRedundancyOptimizer": lambda weights: ZeroRedundancyOptimizer(weights, torch.optim.SGD, lr=1.0),
    "PostLocalSGDOptimizer": lambda weights: PostLocalSGDOptimizer(
        torch.optim.SGD(weights, lr=1.0), PeriodicModelAverager(period=4, warmup_steps=0)
    ),
}


def made(name):
    weight = torch.nn.Parameter(torch.zeros(1))
    return weight, OPTIMIZERS[name]([weight])


def steps(weight, optimizer, scheduler, count):
    taken = []
    for _ in range(count):
        before = weight.item()
        weight.grad = torch.ones(1)
        optimizer.step()
        scheduler.step()
        taken.append(before - weight.item())
    return taken


dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)
print("package  torch", torch.__version__)
print(f"input    a gradient of 1, StepLR from 1.0 by halves, saved after {SAVED} steps; learning rates of {MORE} more")
seen = {}
for name in OPTIMIZERS:
    weight, optimizer = made(name)
    scheduler = StepLR(optimizer, 1, 0.5)
    steps(weight, optimizer, scheduler, SAVED)
    if name == "ZeroRedundancyOptimizer":
        optimizer.consolidate_state_dict()
    saved = optimizer.state_dict(), scheduler.state_dict()
    expected = steps(weight, optimizer, scheduler, MORE)
    for when in ("before", "after"):
        weight, optimizer = made(name)
        scheduler = StepLR(optimizer, 1, 0.5) if when == "before" else None
        optimizer.load_state_dict(saved[0])
        scheduler = scheduler or StepLR(optimizer, 1, 0.5)
        scheduler.load_state_dict(saved[1])
        for group in optimizer.param_groups if when == "after" else ():
            group["lr"] = scheduler.get_last_lr()[0]  # a new scheduler has begun with the first learning rate
        seen[name, when] = steps(weight, optimizer, scheduler, MORE)
        print(f"{name}, scheduler made {when} the load: expected {expected}, seen {seen[name, when]}; shown", end=" ")
        print(optimizer.param_groups[0]["lr"])
dist.destroy_process_group()
right, kept = [0.125, 0.0625, 0.03125], [0.125] * MORE
sys.exit(any(taken != (kept if name == "PostLocalSGDOptimizer" else right) for (name, _), taken in seen.items()))
EOF
"$folder/venv/bin/python" -W ignore "$folder/rank.py" "$folder"
