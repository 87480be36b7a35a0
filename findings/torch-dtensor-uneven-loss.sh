#!/usr/bin/env bash
# Losses with reduction="mean" over an unevenly sharded DTensor are the mean of the ranks' means, which is not the mean.
#
# Package:  torch 2.13.0, torch.distributed.tensor on gloo, 2 ranks.
# Expected: "DTensor … provides single-device like abstraction" and sharding by "the torch.chunk(dim) semantic, where
#           the last few shards … might be empty when the tensor dimension is not evenly divisible", which is marked
#           experimental (https://docs.pytorch.org/docs/2.13/distributed.tensor.html). torch.nn.MSELoss: "The
#           mean operation still operates over all the elements, and divides by n".
# Seen:     of 3 rows on 2 ranks, mse_loss, smooth_l1_loss, huber_loss, soft_margin_loss and
#           binary_cross_entropy_with_logits weigh the one row of the last rank like the two rows of the first. l1_loss
#           and DTensor.mean are right.
# Upstream: DTensor.mean was repaired (pytorch/pytorch#162692, #163241); no issue found on losses. 2026-11-28.
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
import torch.nn.functional as F
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

LOSSES = {
    "mean of squares": lambda x, y: ((x - y) ** 2).mean(),
    "l1_loss": F.l1_loss,
    "mse_loss": F.mse_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, 2 * y - 1),
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
}
RIGHT = ("mean of squares", "l1_loss")


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    x, y = torch.tensor([[0.0], [0.0], [3.0]]), torch.tensor([[0.0], [0.0], [0.0]])
    shards = [distribute_tensor(each, mesh, [Shard(0)]) for each in (x, y)]
    for name, loss in LOSSES.items():
        got = loss(*shards).full_tensor().item()
        if rank == 0:
            results[name] = (loss(x, y).item(), got)
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    print("package  torch", torch.__version__, "(DTensor, gloo, 2 ranks)")
    print("input    rows 0, 0 on rank 0 and row 3 on rank 1; targets 0")
    for name, (expected, seen) in results.items():
        print(f"{name:34} expected {expected:.4f}, seen {seen:.4f}")
    sys.exit(not all((abs(a - b) < 1e-6) == (name in RIGHT) for name, (a, b) in results.items()))
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
