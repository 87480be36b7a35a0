#!/usr/bin/env bash
# BatchNorm of a DTensor that is sharded by features, as behind a column-parallel layer, never updates its running mean and
# variance: training is right, evaluation normalises by 0 and 1.
#
# Package:  torch 2.13.0, torch.distributed.tensor on gloo, 2 ranks.
# Expected: "DTensor … provides single-device like abstraction"
#           (https://docs.pytorch.org/docs/2.13/distributed.tensor.html); BatchNorm1d: "during training this layer keeps
#           running estimates of its computed mean and variance, which are then used for normalization during evaluation"
#           (https://docs.pytorch.org/docs/2.13/generated/torch.nn.BatchNorm1d.html). distribute_module replicates
#           parameters and buffers by default.
# Seen:     running_mean stays 0 and running_var 1, num_batches_tracked is 3 after 3 steps, and eval() returns other values
#           than one process: no error, no warning. Output and gradients in training are right. With rows sharded, or with
#           buffers sharded like the input, the estimates are right. Probably the layer's replicated buffers are brought
#           to the input's placement, which makes a copy, and the update goes into the copy.
# Upstream: no issue found in pytorch/pytorch. 2026-11-30.
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
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

INPUT = torch.tensor([[1.0, 10, 100, 1000], [3, 30, 300, 3000], [5, 50, 500, 5000], [7, 70, 700, 7000]])
# placements of the input and of the layer's parameters and buffers
CASES = {"by rows": (Shard(0), Replicate()), "by features, buffers too": (Shard(1), Shard(0)),
         "by features": (Shard(1), Replicate())}


def plain(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).tolist()


def after_steps(layer, x):
    for _ in range(3):
        trained = layer(x)
    layer.eval()
    return {"train": plain(trained), "mean": plain(layer.running_mean), "eval": plain(layer(x))}


def place(placement):
    def partition(_, layer, mesh):
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            placed = distribute_tensor(tensor.detach(), mesh, [placement if tensor.dim() else Replicate()])
            if name in dict(layer.named_buffers()):
                setattr(layer, name, placed)
            else:
                setattr(layer, name, torch.nn.Parameter(placed))

    return partition


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for case, (shard, held_as) in CASES.items():
        partition = None if held_as.is_replicate() else place(held_as)
        layer = distribute_module(torch.nn.BatchNorm1d(4, momentum=0.5), mesh, partition)
        with torch.no_grad():
            seen = after_steps(layer, distribute_tensor(INPUT, mesh, [shard]))
        if rank == 0:
            results[case] = seen
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    with torch.no_grad():
        expected = after_steps(torch.nn.BatchNorm1d(4, momentum=0.5), INPUT)
    print("package  torch", torch.__version__, "(gloo, 2 ranks)")
    print("input    4 rows of 4 features, 3 steps of BatchNorm1d in training, then eval()")
    wrong = {}
    for case, seen in results.items():
        for name, value in expected.items():
            if not torch.allclose(torch.tensor(seen[name]), torch.tensor(value), rtol=1e-3):
                wrong.setdefault(case, {})[name] = seen[name]
        print(f"{case:24} running_mean expected {expected['mean']}, seen {seen['mean']}")
        last = [[round(value, 2) for value in each["eval"][-1]] for each in (expected, seen)]
        print(f"{'':24} eval, last row expected {last[0]}, seen {last[1]}")
    sys.exit(list(wrong) != ["by features"] or list(wrong["by features"]) != ["mean", "eval"]
             or wrong["by features"]["mean"] != [0] * 4)
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
