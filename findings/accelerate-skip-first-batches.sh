#!/usr/bin/env bash
# After accelerate's skip_first_batches, with which a job resumes in the middle of an epoch, gather_for_metrics counts the
# samples twice with which the last batch was filled up.
#
# Package:  accelerate 1.15.0 with torch 2.13.0, 2 processes on CPU.
# Expected: gather_for_metrics: "Gathers `input_data` and potentially drops duplicates in the last batch if on a
#           distributed system. Should be used for gathering the inputs and targets for metric calculation"
#           (https://huggingface.co/docs/accelerate/v1.15.0/package_reference/accelerator).
# Seen:     10 samples, batches of 2 on 2 processes: 10 come back from the whole loader; after skip_first_batches(…, 1),
#           8 instead of 6: samples 0 and 1, which were to fill the last batch, are among them. No warning.
# Upstream: known: huggingface/accelerate#4235 (open). 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check accelerate==1.15.0 torch==2.13.0 numpy==2.4.6

cat >"$folder/ranks.py" <<'EOF'
import json
import os
import sys
from importlib.metadata import version
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def work(rank, folder):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", OMP_NUM_THREADS="1")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1")  # asked for, not used: the group is there
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(10), batch_size=2))
    seen = {}
    for name, each in (("whole", loader), ("skipped", accelerator.skip_first_batches(loader, 1))):
        seen[name] = sorted(value for batch in each for value in accelerator.gather_for_metrics(batch).tolist())
    if rank == 0:
        Path(folder, "seen").write_text(json.dumps(seen))
    accelerator.end_training()


if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), 2)
    seen = json.loads(Path(sys.argv[1], "seen").read_text())
    print("package  accelerate", version("accelerate"), "torch", torch.__version__)
    print("whole loader           expected", list(range(10)), "seen", seen["whole"])
    print("after the first batch  expected", list(range(4, 10)), "seen", seen["skipped"])
    sys.exit(seen != {"whole": list(range(10)), "skipped": [0, 1, *range(4, 10)]})
EOF
"$folder/venv/bin/python" "$folder/ranks.py" "$folder"
