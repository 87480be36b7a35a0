#!/usr/bin/env bash
# A conjugate comes out of a DataLoader's worker unconjugated: with num_workers=0 the data are right, with 1 they are not.
#
# Package:  torch 2.13.0 (torch.utils.data, torch.multiprocessing).
# Expected: num_workers only says "how many subprocesses to use for data loading" (https://docs.pytorch.org/docs/2.13/data.html);
#           torch.multiprocessing: "all tensors sent through a multiprocessing.Queue will have their data moved into
#           shared memory and will only send a handle to another process". z.conj() is lazy (Tensor.is_conj), and
#           torch.save, pickle and copy.deepcopy keep it.
# Seen:     the handle does not carry the conjugate bit (nor the negative one): batches of a dataset or collate_fn that
#           ends in .conj(), or in .mH of complex matrices, and what goes through a Queue, arrive as the original, with
#           no error. With automatic batching a worker raises instead.
# Upstream: no issue found; torch.save (pytorch/pytorch#81690) and RPC (#88294) had it and were repaired. 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/load.py" <<'EOF'
import pickle
import sys
import torch
from torch.utils.data import DataLoader


class Matrices(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return torch.tensor([[1 + 2j, 3 - 4j]]).mH


def conjugates(samples):
    return torch.stack(samples).conj()


if __name__ == "__main__":
    expected = [[1 - 2j], [3 + 4j]]
    print("package  torch", torch.__version__)
    print("by pickle        expected", expected, "seen", pickle.loads(pickle.dumps(Matrices()[0])).tolist())
    seen = {}
    for workers in (0, 1):
        seen[workers] = next(iter(DataLoader(Matrices(), batch_size=None, num_workers=workers))).tolist()
        print(f"num_workers={workers}    expected", expected, "seen", seen[workers])
    collated = {
        workers: next(iter(DataLoader([torch.tensor(1 + 2j)], collate_fn=conjugates, num_workers=workers))).tolist()
        for workers in (0, 1)
    }
    print("collate_fn with .conj(): expected [(1-2j)] of both, seen", collated)
    right, wrong = expected, [[1 + 2j], [3 - 4j]]
    sys.exit(not (seen == {0: right, 1: wrong} and collated == {0: [1 - 2j], 1: [1 + 2j]}))
EOF
"$folder/venv/bin/python" "$folder/load.py"
