#!/usr/bin/env bash
# Gradients of mse_loss and four other mean losses of a sharded DTensor are too large by the number of ranks; the loss is
# right.
#
# Package:  torch 2.13.0 (2.14.1 does the same), torch.distributed.tensor on gloo, 2 and 3 ranks.
# Expected: "DTensor … provides single-device like abstraction"; it will "perform sharded computation and issue
#           communications whenever necessary" (https://docs.pytorch.org/docs/2.13/distributed.tensor.html). The loss of
#           the same data in a plain tensor has one gradient, however its rows are sharded.
# Seen:     rows divided evenly, so that the value of the loss is right; after backward() the gradients of a replicated
#           layer are 2 times as large on 2 ranks, 3 times on 3, for mse_loss, huber_loss, smooth_l1_loss,
#           soft_margin_loss and binary_cross_entropy: their backward divides by the elements of the rank's own shard.
#           l1_loss, binary_cross_entropy_with_logits and (x - y).square().mean() are right. Adam hides the factor; SGD,
#           clipping and a second loss term do not.
# Upstream: no issue found in pytorch/pytorch (#185167 is on the value of nll_loss with weights). 2026-11-30.
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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

LOSSES = {
    "mean of squares": lambda x, y: (x - y).square().mean(),
    "l1_loss": F.l1_loss,
    "binary_cross_entropy_with_logits": F.binary_cross_entropy_with_logits,
    "mse_loss": F.mse_loss,
    "huber_loss": F.huber_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "soft_margin_loss": lambda x, y: F.soft_margin_loss(x, 2 * y - 1),
    "binary_cross_entropy": lambda x, y: F.binary_cross_entropy(x.sigmoid(), y),
}
RIGHT = list(LOSSES)[:3]


def value_and_gradient(loss, data, weight, targets):
    weight.requires_grad_()
    value = loss(F.linear(data, weight), targets)
    value.backward()
    whole = lambda tensor: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole(value).item(), whole(weight.grad).item()


def work(rank, world, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}{world}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    data, weight = torch.arange(6.0).reshape(6, 1) / 10, torch.tensor([[0.5]])
    targets = torch.tensor([[0.0], [1], [1], [0], [1], [1]])
    for name, loss in LOSSES.items():
        expected = value_and_gradient(loss, data, weight.clone(), targets)
        shards = [distribute_tensor(each, mesh, [Shard(0)]) for each in (data, targets)]
        seen = value_and_gradient(loss, shards[0], distribute_tensor(weight, mesh, [Replicate()]), shards[1])
        if rank == 0:
            results[world, name] = expected, seen
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    for world in (2, 3):
        mp.spawn(work, (world, sys.argv[1] + "/store", results), world)
    print("package  torch", torch.__version__, "(DTensor, gloo)")
    print("input    6 rows, divided evenly among the ranks; one replicated weight")
    as_told = True
    for (world, name), (expected, seen) in results.items():
        print(
            f"{world} ranks, {name:33} loss expected {expected[0]:.4f}, seen {seen[0]:.4f};"
            f" gradient expected {expected[1]:.4f}, seen {seen[1]:.4f}"
        )
        times = 1 if name in RIGHT else world
        as_told &= abs(seen[0] - expected[0]) < 1e-5 and abs(seen[1] - times * expected[1]) < 1e-5
    sys.exit(not as_told)
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
