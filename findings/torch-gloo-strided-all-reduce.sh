#!/usr/bin/env bash
# Gloo's all_reduce of a strided tensor adds up the memory it starts at, not its elements: the result is wrong, and
# elements beside it, which are not part of the tensor, are changed.
#
# Package:  torch 2.13.0, backend gloo (CPU), 2 ranks.
# Expected: "all_reduce: Reduces the tensor data across all machines in a way that all get the final result"
#           (https://docs.pytorch.org/docs/2.13/distributed.html). No word of contiguous memory; all_gather takes the
#           same tensor and is right, all_to_all_single and NCCL refuse it ("Tensors must be contiguous").
# Seen:     for a view `x[::2]` of 4 elements, the first 4 elements of the memory are summed: half of the view stays
#           as it was, and two elements between, which belong to somebody else, are doubled. With a transposed matrix on
#           one rank and a contiguous one on the other, elements are added to the wrong partner. No error, no warning.
# Upstream: known for scatter (pytorch/pytorch#24836) and for scatter, broadcast and reduce (#192920, open);
#           all_reduce and the change of foreign elements are in neither. 2026-11-28.
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


def work(rank, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    memory = torch.tensor([1.0, 100, 2, 100, 3, 100, 4, 100])
    memory[::2] *= rank + 1
    dist.all_reduce(memory[::2])
    matrix = torch.tensor([[0.0, 1], [2, 3]]) * (rank + 1)
    turned = matrix.t() if rank == 0 else matrix.t().contiguous()
    dist.all_reduce(turned)
    results[rank] = [memory[::2].tolist(), memory[1::2].tolist(), turned.tolist()]
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    view, between, turned = results[0]
    print("package  torch", torch.__version__, "(gloo, 2 ranks; rank 0 is shown)")
    print("input    memory[::2] = [1, 2, 3, 4] and [2, 4, 6, 8]; all between are 100")
    print(f"all_reduce(memory[::2])       expected [3, 6, 9, 12], seen {view}")
    print(f"what lies between             expected [100, 100, 100, 100], seen {between}")
    print(f"all_reduce(matrix.t())        expected [[0, 6], [3, 9]], seen {turned}")
    sys.exit(not (view == [3, 6, 3, 4] and between == [200, 200, 100, 100] and turned == [[0, 4], [5, 9]]))
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
