#!/usr/bin/env bash
# ZeroRedundancyOptimizer with parameter groups made of model.….parameters() optimises nothing, without a word.
#
# Package:  torch 2.13.0 (torch.distributed.optim); one rank shows it, as do more.
# Expected: params: "an Iterable of torch.Tensors or dicts giving all parameters" (ZeroRedundancyOptimizer), as for
#           torch.optim, whose own example is [{"params": model.base.parameters(), "lr": 1e-2}, {"params":
#           model.classifier.parameters()}] (https://docs.pytorch.org/docs/2.13/optim.html, "Per-parameter options").
# Seen:     the constructor reads each generator once to count the parameters and hands the exhausted generators on: all
#           groups are empty, step() changes no parameter, a scheduler shows the right learning rates, no error and no
#           warning. torch.optim.SGD takes the same groups; with list(model.….parameters()) both agree.
# Upstream: no issue found in pytorch/pytorch (#59973 and #72578 brought groups); mmengine works around it (#818).
#           2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/rank.py" <<'EOF'
import sys
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=0, world_size=1)


def sizes_and_change(make, held_as):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 3))
    before = [each.detach().clone() for each in model.parameters()]
    optimizer = make(
        [{"params": held_as(model[0].parameters())}, {"params": held_as(model[1].parameters()), "lr": 0.5}]
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    changed = sum(not torch.equal(old, new) for old, new in zip(before, model.parameters()))
    return [len(group["params"]) for group in optimizer.param_groups], changed


plain = lambda groups: torch.optim.SGD(groups, lr=0.1)
zero = lambda groups: ZeroRedundancyOptimizer(groups, torch.optim.SGD, lr=0.1)
print("package  torch", torch.__version__)
print("input    two layers, a group each: 2 and 2 parameters; one step")
seen = {}
for name, make, held_as in (
    ("SGD, generators", plain, iter),
    ("ZeroRedundancyOptimizer, lists", zero, list),
    ("ZeroRedundancyOptimizer, generators", zero, iter),
):
    seen[name] = sizes_and_change(make, held_as)
    print(f"{name:36} expected groups of [2, 2], 4 changed; seen groups of {seen[name][0]}, {seen[name][1]} changed")
dist.destroy_process_group()
sys.exit(list(seen.values()) != [([2, 2], 4), ([2, 2], 4), ([0, 0], 0)])
EOF
"$folder/venv/bin/python" "$folder/rank.py" "$folder"
