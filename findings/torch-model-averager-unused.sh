#!/usr/bin/env bash
# PeriodicModelAverager averages one layer's weights of a rank with another layer's of the next where the ranks have not
# used the same layers in that step.
#
# Package:  torch 2.13.0 (2.14.1 does the same), torch.distributed.optim and torch.distributed.algorithms.model_averaging
#           on gloo, 2 ranks.
# Expected: PostLocalSGDOptimizer "averages parameters periodically after the local optimizer is applied"
#           (https://docs.pytorch.org/docs/2.13/distributed.optim.html): afterwards all ranks hold the mean of each
#           parameter.
# Seen:     each rank leaves out the parameters whose gradient is None and all-reduces the others in one flat buffer. A
#           rank that used layer a and one that used layer b of the same size average a with b; no error, no warning.
#           So it is for a plain model (two experts, a branch by data set or by task) and under DDP's no_sync(); with
#           post_localSGD_hook and find_unused_parameters DDP makes gradients of 0, and the means are right.
# Upstream: no issue found in pytorch/pytorch (#74157 and #74894 are on averaging all parameters or those with a
#           gradient). 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import sys
from contextlib import nullcontext
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

CASES = ("post_localSGD_hook", "plain model", "no_sync")


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.constant_(self.a.weight, 10)
        torch.nn.init.constant_(self.b.weight, 20)

    def forward(self, x, name):
        return getattr(self, name)(x)


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    alone, _ = dist.new_subgroups(1)
    for case in CASES:
        experts = model = Experts()
        if case != "plain model":
            model = DistributedDataParallel(experts, find_unused_parameters=True)
        if case == "post_localSGD_hook":
            state = PostLocalSGDState(process_group=None, subgroup=alone, start_localSGD_iter=0)
            model.register_comm_hook(state, post_localSGD_hook)
        local = torch.optim.SGD(model.parameters(), lr=1)
        optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=2))
        with model.no_sync() if case == "no_sync" else nullcontext():
            model(torch.ones(1, 1), "ab"[rank]).sum().backward()
        optimizer.step()
        results[case, rank] = experts.a.weight.item(), experts.b.weight.item()
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    print("package  torch", torch.__version__, "(gloo, 2 ranks)")
    print("input    weights a = 10, b = 20; in the step before the averaging rank 0 makes a 9, rank 1 makes b 19")
    for case in CASES:
        print(f"{case:19} expected a, b = (9.5, 19.5) on both; seen {results[case, 0]} and {results[case, 1]}")
    crossed = ((14.0, 20.0), (10.0, 14.0))
    seen = [(results[case, 0], results[case, 1]) for case in CASES]
    sys.exit(seen != [((9.5, 19.5), (9.5, 19.5)), crossed, crossed])
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
