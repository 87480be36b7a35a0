#!/usr/bin/env bash
# hvd.broadcast_optimizer_state takes a step: weight decay is applied, Adam's first step is a quarter shorter, and
# after a resume the ranks train with different weights.
#
# Package:  horovod 0.28.1 (horovod.torch) on torch 2.13.0, Gloo, two processes.
# Expected: "Broadcasts an optimizer state from root rank to all other processes"
#           (https://horovod.readthedocs.io/en/stable/api.html#horovod.torch.broadcast_optimizer_state), after
#           broadcast_parameters, in the order of Horovod's own examples (examples/pytorch/pytorch_imagenet_resnet50.py).
# Seen:     on a rank whose optimizer has no state yet it calls optimizer.step() with gradients of zero to make one.
#           AdamW decays all weights once and counts a step: the first real one is 74 % as long. Where rank 0 has
#           resumed from a checkpoint, its state is there and only the others take that step: their weights differ from
#           those that broadcast_parameters has just made equal, and stay different. No error, no warning.
#           The other order (optimizer state first) keeps the ranks equal.
# Upstream: no issue found in horovod/horovod (#562 and #967 brought it and its place in the examples). 2026-11-30.
# Needs g++ and make: Horovod is compiled here, in minutes. torch's headers want C++20, Horovod asks for C++14.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install -q --disable-pip-version-check)
"${pip[@]}" torch==2.13.0 numpy==2.4.6 setuptools==78.1.1 wheel packaging cffi cloudpickle psutil pyyaml "cmake<4"
cat >"$folder/c++" <<'EOF'
#!/bin/bash
exec g++ "${@/#-std=*++1[14]/-std=gnu++20}" -O0 -g0 -DFLATBUFFERS_USE_STD_SPAN -include string -include cstdint
EOF
chmod +x "$folder/c++"
PATH="$folder/venv/bin:$PATH" CXX="$folder/c++" CMAKE_POLICY_VERSION_MINIMUM=3.5 HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_GLOO=1 \
    HOROVOD_WITHOUT_MPI=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    "${pip[@]}" --no-build-isolation --no-cache-dir --no-binary horovod horovod==0.28.1

cat >"$folder/rank.py" <<'EOF'
import sys
import horovod
import horovod.torch as hvd
import torch

hvd.init()


def weights(order, resumed):
    """Weights of both ranks after the broadcasts and after one step, from weights of one."""
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.ones_(model.weight)
    make = lambda: torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    checkpoint = None
    if resumed and hvd.rank() == 0:
        before = make()
        model(torch.ones(1, 2)).sum().backward()
        before.step()
        checkpoint = before.state_dict()
    optimizer = hvd.DistributedOptimizer(make(), named_parameters=model.named_parameters())
    if checkpoint is not None:
        optimizer.load_state_dict(checkpoint)
    steps = {
        "parameters": lambda: hvd.broadcast_parameters(model.state_dict(), root_rank=0),
        "state": lambda: hvd.broadcast_optimizer_state(optimizer, root_rank=0),
    }
    for name in order:
        steps[name]()
    seen = [hvd.allgather(model.weight[:1, :1].detach())]
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    seen.append(hvd.allgather(model.weight[:1, :1].detach()))
    return [[round(one, 3) for one in each.flatten().tolist()] for each in seen]


cases = {
    "parameters only": weights(("parameters",), False),
    "parameters, then state": weights(("parameters", "state"), False),
    "resumed; parameters, then state": weights(("parameters", "state"), True),
    "resumed; state, then parameters": weights(("state", "parameters"), True),
}
if hvd.rank() == 0:
    print("packages horovod", horovod.__version__, "torch", torch.__version__)
    print("input    two ranks, one weight of 1 (resumed: after one step on rank 0), AdamW, lr 0.1, decay 0.1")
    for name, (begun, stepped) in cases.items():
        print(f"{name:32} weights of the ranks before the first step {begun}, after it {stepped}")
    fresh, decayed = cases["parameters only"], cases["parameters, then state"]
    apart, equal = list(cases.values())[2:]
    print("expected rows 1 and 2 the same, and in each pair two equal weights")
    same = lambda pair: pair[0] == pair[1]
    sys.exit(
        not (
            fresh == [[1.0, 1.0], [0.89, 0.89]]
            and decayed == [[0.99, 0.99], [0.906, 0.906]]
            and not same(apart[0])
            and not same(apart[1])
            and same(equal[0])
            and same(equal[1])
        )
    )
EOF
"$folder/venv/bin/horovodrun" --gloo -np 2 "$folder/venv/bin/python" "$folder/rank.py"
