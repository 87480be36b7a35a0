#!/usr/bin/env bash
# split_between_processes cuts a dictionary of the caller down to the process' share: the next call with it splits that
# share again, and samples are lost.
#
# Package:  accelerate 1.15.0 with torch 2.13.0, 2 processes on CPU.
# Expected: split_between_processes "Splits input between self.num_processes quickly and can be then used on that
#           process. Useful when doing distributed inference, such as with different prompts"; inputs is the "input to
#           split between processes" (https://huggingface.co/docs/accelerate/v1.15.0/package_reference/state). No word
#           of a change to it, and a list, tuple or tensor stays as it was; so does the dictionary of a single process.
# Seen:     the lists in the caller's own dictionary are replaced by their shares and stay so after the with block. The
#           same 8 prompts, split once for each of 3 seeds (or checkpoints, or epochs), are 8, then 4, then 2 prompts in
#           all; no error, no warning. With dict(prompts) in each call it is 8 each time.
# Upstream: no issue found in huggingface/accelerate; its own test of dictionaries compares with a copy. 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import os
import sys
from importlib.metadata import version

import torch
import torch.multiprocessing as mp

SEEDS = 3


def work(rank, folder, results):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # asked for, not used: the group is there
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    from accelerate import PartialState

    state = PartialState(cpu=True)
    prompts = list("ABCDEFGH")
    for name, inputs, given in (
        ("a list", prompts, lambda inputs: inputs),
        ("a copied dictionary", {"prompt": prompts}, dict),
        ("a dictionary", {"prompt": prompts}, lambda inputs: inputs),
    ):
        for seed in range(SEEDS):
            with state.split_between_processes(given(inputs)) as share:
                results[name, seed, rank] = "".join(share if isinstance(share, list) else share["prompt"])
    state.destroy_process_group()


if __name__ == "__main__":
    results = mp.Manager().dict()
    mp.spawn(work, (sys.argv[1], results), 2)
    print("package  accelerate", version("accelerate"), "torch", torch.__version__)
    print("input    8 prompts, A to H, split between 2 processes for each of 3 seeds")
    seen = {}
    for name, seed, rank in results.keys():
        seen.setdefault(name, {}).setdefault(seed, {})[rank] = results[name, seed, rank]
    seen = {name: [(seeds[seed][0], seeds[seed][1]) for seed in range(SEEDS)] for name, seeds in seen.items()}
    for name, shares in seen.items():
        print(f"{name:20} expected {[('ABCD', 'EFGH')] * SEEDS}, seen {shares}")
    right = [("ABCD", "EFGH")] * SEEDS
    shrunk = [("ABCD", "EFGH"), ("AB", "GH"), ("A", "H")]
    sys.exit(seen != {"a list": right, "a copied dictionary": right, "a dictionary": shrunk})
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
