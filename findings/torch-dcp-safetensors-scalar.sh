#!/usr/bin/env bash
# A distributed checkpoint that torch consolidates to safetensors has 0 for every scalar, say CLIP's logit_scale.
#
# Package:  torch 2.13.0, safetensors 0.8.0, torch.distributed.checkpoint on gloo, 2 ranks.
# Expected: HuggingFaceStorageWriter, enable_consolidation: "the full tensors will be saved to path"
#           (https://docs.pytorch.org/docs/2.13/distributed.checkpoint.html).
# Seen:     tensors of shape () are in the shards as they were and 0 in the consolidated file, replicated DTensors, too;
#           those of shape (1,) are right. No error, no warning. "Handle empty tensors" in _consolidate_hf_safetensors.py
#           returns at once for `not tensor_shape`, which holds for (); 2.14.1 has the same line.
# Upstream: no issue found in pytorch/pytorch or pytorch/torchtitan. 2026-11-30.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 safetensors==0.8.0

cat >"$folder/ranks.py" <<'EOF'
import sys
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

NAMES = ("weight", "bias", "one", "logit_scale", "replicated")


def work(rank, folder):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {
        "weight": distribute_tensor(torch.arange(1.0, 7).reshape(3, 2), mesh, [Shard(0)]),
        "bias": distribute_tensor(torch.arange(1.0, 4), mesh, [Replicate()]),
        "one": torch.tensor([4.6]),
        "logit_scale": torch.tensor(4.6),
        "replicated": distribute_tensor(torch.tensor(4.6), mesh, [Replicate()]),
    }
    writer = dcp.HuggingFaceStorageWriter(f"{folder}/saved", save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer)
    dist.destroy_process_group()


def read(folder):
    files = [load_file(each) for each in sorted(folder.glob("*.safetensors"))]
    return {name: [round(value, 3) for file in files if name in file for value in file[name].flatten().tolist()]
            for name in NAMES}


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
    shards, whole = (read(Path(sys.argv[1], "saved", part)) for part in ("sharded", ""))
    print("packages torch", torch.__version__, "(gloo) safetensors", version("safetensors"))
    for name in NAMES:
        print(f"{name:12} in the shards {shards[name]}; consolidated expected the same, seen {whole[name]}")
    scalars = {"logit_scale": [0.0], "replicated": [0.0]}
    right = shards["weight"] == list(range(1, 7)) and all(shards[name] == [4.6] for name in NAMES[2:])
    sys.exit(not (right and whole == shards | scalars))
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder" 2>"$folder/err" || { cat "$folder/err" >&2; exit 1; }
