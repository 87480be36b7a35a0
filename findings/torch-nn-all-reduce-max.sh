#!/usr/bin/env bash
# The differentiable all_reduce of torch.distributed.nn has wrong gradients for MAX, MIN and PRODUCT: ranks whose value is
# not the maximum get a gradient, too, and the one that has it gets too small a one.
#
# Package:  torch 2.13.0, torch.distributed.nn.functional on gloo, 2 ranks.
# Expected: "Reduces the tensor data across all machines in such a way that all get the final result"; op: "One of the values
#           from torch.distributed.ReduceOp enum. Specifies an operation used for element-wise reductions" (the docstring).
#           torch.distributed.nn has the collectives that autograd goes through: as the gradient of the sum is right, so
#           should be those of torch.stack([…]).amax(0), .amin(0) and .prod(0).
# Seen:     the values are right. The backward reduces the ranks' incoming gradients by the same operation: right for SUM
#           and AVG; with MAX every rank gets the largest of them for every element, with PRODUCT their product. No error;
#           the only warning says that the function is deprecated. Its successor,
#           torch.distributed._functional_collectives.all_reduce, raises in the backward of all but "sum".
# Upstream: no issue found on these functions (pytorch/pytorch#190942 gives the successor gradients for min and max; #58005
#           is on the scale of the gradients of SUM). 2026-11-30.
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
from torch.distributed.nn.functional import all_reduce

RANKS = [torch.tensor([1.0, 5, 2]), torch.tensor([4.0, 3, 7])]
WEIGHTS = (1, 10)  # of the ranks' losses
REDUCTIONS = {
    "SUM": lambda both: both.sum(0),
    "AVG": lambda both: both.mean(0),
    "MAX": lambda both: both.amax(0),
    "MIN": lambda both: both.amin(0),
    "PRODUCT": lambda both: both.prod(0),
}


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    for name in REDUCTIONS:
        x = RANKS[rank].clone().requires_grad_()
        reduced = all_reduce(x, op=getattr(dist.ReduceOp, name))
        (WEIGHTS[rank] * reduced.sum()).backward()
        results[name, rank] = reduced.tolist(), x.grad.tolist()
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    print("package  torch", torch.__version__, "(gloo, 2 ranks)")
    print(f"input    {[each.tolist() for each in RANKS]}; the ranks' losses are {WEIGHTS} times the sum of the result")
    wrong = {}
    for name, reduction in REDUCTIONS.items():
        both = torch.stack(RANKS).requires_grad_()
        reduced = reduction(both)
        (sum(WEIGHTS) * reduced.sum()).backward()
        seen = [results[name, rank][1] for rank in range(2)]
        assert results[name, 0][0] == results[name, 1][0] == reduced.tolist()
        print(f"{name:8} {reduced.tolist()}: expected gradients {both.grad.tolist()}, seen {seen}")
        if seen != both.grad.tolist():
            wrong[name] = seen
    sys.exit(wrong != {"MAX": [[10] * 3] * 2, "MIN": [[1] * 3] * 2, "PRODUCT": [[10] * 3] * 2})
EOF
"$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder"
