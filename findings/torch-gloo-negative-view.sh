#!/usr/bin/env bash
# In-place collectives on a tensor with the negative bit return without error and leave the tensor as it was.
#
# Package:  torch 2.13.0, backend gloo (CPU), 2 ranks.
# Expected: "all_reduce: Reduces the tensor data across all machines in a way that all get the final result. After the
#           call tensor is going to be bitwise identical in all processes"; broadcast: "tensor: … tensor to be used to
#           save received data" (https://docs.pytorch.org/docs/2.13/distributed.html). `z.conj().imag` is an ordinary
#           real tensor whose negation is lazy (torch.Tensor.is_neg); torch materialises it wherever it is needed.
# Seen:     all_reduce, broadcast and reduce work on a materialised copy that is then thrown away: each rank keeps its
#           own value, no error, no warning. The gathers, which only read the tensor, are right.
# Upstream: no issue found (searched pytorch/pytorch for is_neg, resolve_neg, conj with collectives). 2026-11-28.
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
    spectrum = lambda: torch.fft.rfft(torch.tensor([0.0, 1, 0, 0]) * (rank + 1)).conj().imag
    single = lambda: (torch.tensor([1 + 1j]) * (rank + 1)).conj().imag
    x = spectrum()
    dist.all_reduce(x)
    y = single()
    dist.all_reduce(y)
    z = single()
    dist.broadcast(z, src=1)
    plain = spectrum().resolve_neg().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(plain)
    gathered = [torch.zeros(1), torch.zeros(1)]
    dist.all_gather(gathered, single())
    results[rank] = [each.tolist() for each in (x, y, z, plain, torch.cat(gathered))]
    dist.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1] + "/store", results), 2)
    x, y, z, plain, gathered = results[0]
    print("package  torch", torch.__version__, "(gloo, 2 ranks; rank 0 is shown)")
    print("input    torch.fft.rfft(…).conj().imag, of rank 1 twice that of rank 0; single: [-1.] and [-2.]")
    print(f"all_reduce, resolved first    expected [0, 3, 0], seen {plain}")
    print(f"all_reduce, as it is          expected [0, 3, 0], seen {x}")
    print(f"all_reduce of single          expected [-3], seen {y}")
    print(f"broadcast of single, from 1   expected [-2], seen {z}")
    print(f"all_gather of single          expected [-1, -2], seen {gathered}")
    assert plain == [0, 3, 0] and gathered == [-1, -2]
    sys.exit(not (x == [0, 1, 0] and y == [-1] and z == [-1]))
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
