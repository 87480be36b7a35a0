#!/usr/bin/env bash
# webdataset's split_by_node splits nothing in a DataLoader's worker that is not forked: every rank trains on all shards.
#
# Package:  webdataset 1.0.2 with torch 2.13.0 (gloo), 2 ranks that get their rank from init_process_group(rank=…), as under
#           srun or mpirun, and have no RANK in their environment.
# Expected: split_by_node: "Split the input sequence by PyTorch distributed rank"; single_node_only, the default: "Raises:
#           ValueError: If multi-node training is detected" (webdataset/shardlists.py). DataLoader: multiprocessing_context
#           is the start method of the workers (https://docs.pytorch.org/docs/2.13/data.html); forkserver is Python's
#           default on Linux from 3.14 on (https://docs.python.org/3.14/library/multiprocessing.html).
# Seen:     a worker looks for RANK and WORLD_SIZE and then asks torch.distributed, which a forked worker has as its parent
#           has it, and a worker of forkserver or spawn uninitialized: it takes itself for rank 0 of 1. With
#           nodesplitter=split_by_node each rank reads all 4 shards, and without a nodesplitter the ValueError is not
#           raised. No warning. With RANK and WORLD_SIZE set all is right.
# Upstream: no issue found in webdataset/webdataset; torch's own DataPipes had it (pytorch/pytorch#79041, repaired).
#           2026-12-01.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check webdataset==1.0.2 torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import gc
import os
import sys
from importlib.metadata import version

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import webdataset as wds
from torch.utils.data import DataLoader

RANKS, SHARDS = 2, range(4)
METHODS = ("no worker", "fork", "forkserver", "spawn")


def number(sample):
    return int(sample["txt"])


def read(folder, method, **nodesplitter):
    urls = [f"{folder}/{shard}.tar" for shard in SHARDS]
    dataset = wds.WebDataset(urls, shardshuffle=False, **nodesplitter).map(number)
    worker = {} if method == "no worker" else {"num_workers": 1, "multiprocessing_context": method}
    try:
        return list(DataLoader(dataset, batch_size=None, **worker))
    except ValueError:
        return "ValueError"
    finally:
        gc.collect()  # the next worker to be forked shall not have this loader's


def train(rank, folder, known, results):
    if known == "RANK":
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS))
    dist.init_process_group("gloo", init_method=f"file://{folder}/{known}", rank=rank, world_size=RANKS)
    for method in METHODS:
        results[known, "split_by_node", method, rank] = read(folder, method, nodesplitter=wds.split_by_node)
        results[known, "by default", method, rank] = read(folder, method)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    for shard in SHARDS:
        with wds.TarWriter(f"{sys.argv[1]}/{shard}.tar") as tar:
            for sample in (10 * shard, 10 * shard + 1):
                tar.write({"__key__": str(sample), "txt": str(sample)})
    results = mp.Manager().dict()
    for known in ("no RANK", "RANK"):
        mp.spawn(train, (sys.argv[1], known, results), RANKS)
    print("package  webdataset", version("webdataset"), "torch", torch.__version__)
    print("input    4 shards of 2 samples, 2 ranks, a worker each")
    everything = [10 * shard + i for shard in SHARDS for i in (0, 1)]
    expected = {"split_by_node": [[0, 1, 20, 21], [10, 11, 30, 31]], "by default": ["ValueError"] * RANKS}
    as_told = True
    for known in ("no RANK", "RANK"):
        for splitter in expected:
            for method in METHODS:
                seen = [results[known, splitter, method, rank] for rank in range(RANKS)]
                print(f"{known:7} {splitter:13} {method:10} expected {expected[splitter]}, seen {seen}")
                unsplit = known == "no RANK" and method in ("forkserver", "spawn")
                as_told &= seen == ([everything] * RANKS if unsplit else expected[splitter])
    sys.exit(not as_told)
EOF
"$folder/venv/bin/python" -W ignore "$folder/ranks.py" "$folder"
