#!/usr/bin/env bash
# NormalizedRootMeanSquaredError on three ranks: an IndexError with one output, wrong values with three.
#
# Package:  torchmetrics 1.9.0 with torch 2.13.0 (gloo); two ranks are right.
# Expected: compute() on every rank returns what one process returns for all ranks' data: the states are gathered and
#           "aggregated" for several devices (torchmetrics/regression/nrmse.py, _final_aggregation), and
#           MeanSquaredError, PearsonCorrCoef and all others of torchmetrics.regression do so for the same data.
# Seen:     the loop over ranks writes its results over the gathered states, and rank 0's share is never replaced by
#           the sum. One output: from the third rank on "index 2 is out of bounds". Three outputs: no error, values from
#           rank 0 and the last rank alone, divided as if elements of one rank were ranks. All four normalizations.
# Upstream: no issue found in Lightning-AI/torchmetrics (#2442 brought the metric; its tests use two ranks). 2026-11-29.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6 torchmetrics==1.9.0

cat >"$folder/ranks.py" <<'EOF'
import sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torchmetrics
from torchmetrics import MeanSquaredError, NormalizedRootMeanSquaredError as NRMSE


def metrics(outputs):
    made = {"MeanSquaredError": MeanSquaredError(num_outputs=outputs)}
    return made | {f"NRMSE {how}": NRMSE(how, num_outputs=outputs) for how in ("mean", "range", "std", "l2")}


def data(rank, outputs):
    generator = torch.Generator().manual_seed(rank)
    shape = (4, outputs) if outputs > 1 else (4,)
    return torch.rand(shape, generator=generator), rank + torch.rand(shape, generator=generator)


def answers(ranks, outputs):
    answers = {}
    for name, metric in metrics(outputs).items():
        for rank in ranks:
            metric.update(*data(rank, outputs))
        try:
            answers[name] = torch.as_tensor(metric.compute())
        except IndexError as error:
            answers[name] = str(error)
    return answers


def train(rank, world, folder, queue):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    seen = {outputs: answers([rank], outputs) for outputs in (1, 3)}
    if rank == 0:
        queue.put({key: {name: getattr(each, "tolist", lambda: each)() for name, each in of.items()}
                   for key, of in seen.items()})
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    print("package  torchmetrics", torchmetrics.__version__, "torch", torch.__version__)
    wrong = {}
    for world in (2, 3):
        queue = mp.get_context("spawn").SimpleQueue()
        ranks = mp.spawn(train, (world, sys.argv[1], queue), nprocs=world, join=False)
        seen = queue.get()
        while not ranks.join():
            pass
        for outputs in (1, 3):
            for name, expected in answers(range(world), outputs).items():
                value = seen[outputs][name]
                if isinstance(value, str):
                    wrong[world, outputs, name] = "IndexError"
                elif not torch.allclose(torch.tensor(value), expected, rtol=1e-4):
                    wrong[world, outputs, name] = "other values"
                print(f"{world} ranks, {outputs} output(s), {name:16} expected {expected.tolist()}; seen {value}")
    hows = [f"NRMSE {how}" for how in ("mean", "range", "std", "l2")]
    sys.exit(wrong != {(3, n, how): seen for n, seen in ((1, "IndexError"), (3, "other values")) for how in hows})
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
