#!/usr/bin/env bash
# amax(keepdim=True) and amin(keepdim=True) of a sharded DTensor are the extremes of one rank's shard; gradients of amax()
# are infinite or not a number.
#
# Package:  torch 2.13.0 (2.14.1 does the same), torch.distributed.tensor on gloo, 2 ranks.
# Expected: "DTensor … provides single-device like abstraction"
#           (https://docs.pytorch.org/docs/2.13/distributed.tensor.html); torch.amax: "amax(input, dim=None,
#           keepdim=False)", and for dim: "If None, all dimensions are reduced"; "amax/amin evenly distribute gradients
#           between equal values"
#           (https://docs.pytorch.org/docs/2.13/generated/torch.amax.html).
# Seen:     no dim reaches the operator as an empty list. With keepdim=True that counts as no dimension reduced: the
#           result keeps Shard(0), each rank holds the maximum of its own rows, full_tensor() returns that of rank 0, no
#           error. The backward of amax() and of vector_norm(x, inf), say a penalty on the largest weight, counts the
#           values equal to the maximum in this way and divides by 0. sum, mean and norm do so with dim=(). amax()
#           itself, max() and amax(dim=(0, 1), keepdim=True) are right.
# Upstream: no issue found in pytorch/pytorch. 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import math
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

VALUES = {
    "amax(dim=(0, 1), keepdim=True)": lambda x: x.amax(dim=(0, 1), keepdim=True),
    "amax()": lambda x: x.amax(),
    "amax(keepdim=True)": lambda x: x.amax(keepdim=True),
    "amin(keepdim=True)": lambda x: (-x).amin(keepdim=True),
    "sum(dim=(), keepdim=True)": lambda x: x.sum(dim=(), keepdim=True),
}
GRADIENTS = {
    "max()": lambda x: x.max(),
    "amax()": lambda x: x.amax(),
    "vector_norm(x, inf)": lambda x: torch.linalg.vector_norm(x, float("inf")),
}


def values(x):
    return [getattr(each := reduction(x), "full_tensor", lambda: each)().item() for reduction in VALUES.values()]


def gradients(x):
    for reduction in GRADIENTS.values():
        leaf = x.detach().clone().requires_grad_()
        reduction(leaf).backward()
        yield getattr(leaf.grad, "full_tensor", lambda: leaf.grad)().flatten().tolist()


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.tensor([[1.0, 2], [3, 4]])
    for name, each in (("expected", x), ("seen", distribute_tensor(x, init_device_mesh("cpu", (2,)), [Shard(0)]))):
        found = values(each), list(gradients(each))
        if rank == 0:
            results[name] = found
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    print("package  torch", torch.__version__, "(DTensor, gloo, 2 ranks)")
    print("input    x = [[1, 2], [3, 4]], a row on each rank; amin is that of -x")
    expected, seen = results["expected"], results["seen"]
    for what, names, i in (("value", VALUES, 0), ("gradient", GRADIENTS, 1)):
        for name, right, found in zip(names, expected[i], seen[i]):
            print(f"{what:8} {name:31} expected {right}, seen {found}")
    finite = [all(map(math.isfinite, each)) for each in seen[1]]
    as_told = expected == ([4, 4, 4, -4, 10], [[0, 0, 0, 1]] * 3)
    as_told &= seen[0] == [4, 4, 2, -2, 3] and seen[1][0] == [0, 0, 0, 1] and finite == [True, False, False]
    sys.exit(not as_told)
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
