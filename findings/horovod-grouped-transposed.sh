#!/usr/bin/env bash
# hvd's grouped operations look at the layout of the first tensor only: a transposed one behind it comes back with its
# elements in other places.
#
# Package:  horovod 0.28.1 (horovod.torch) on torch 2.13.0, Gloo, two processes.
# Expected: grouped_allreduce([a, b]) is allreduce(a) and allreduce(b) ("averaging or summation of the input tensor list",
#           https://horovod.readthedocs.io/en/stable/api.html#horovod.torch.grouped_allreduce). allreduce(b.t()) raises
#           "Tensor is required to be contiguous".
# Seen:     grouped_allreduce, grouped_allgather and grouped_reducescatter raise so if the first tensor is transposed. A
#           later one is read in the order of its memory and returned as if it were contiguous: no error, other sums.
#           With b.t().contiguous() all are right.
# Upstream: no issue found in horovod/horovod (#2453 and #3594 brought the grouped operations). 2026-11-30.
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
first, turned = torch.zeros(2), torch.arange(6.0).reshape(2, 3).t()
whole = turned.contiguous()


def or_error(call):
    try:
        return call().tolist()
    except ValueError as error:
        return str(error)


rows = {}
for name, call in (
    ("grouped_allreduce", lambda tensors: hvd.grouped_allreduce(tensors, op=hvd.Sum)),
    ("grouped_allgather", hvd.grouped_allgather),
    ("grouped_reducescatter", lambda tensors: hvd.grouped_reducescatter(tensors, op=hvd.Sum)),
):
    expected = call([first, whole])[1].tolist()
    rows[name] = expected, or_error(lambda: call([first, turned])[1]), or_error(lambda: call([turned, first])[0])
alone = or_error(lambda: hvd.allreduce(turned, op=hvd.Sum))
if hvd.rank() == 0:
    print("packages horovod", horovod.__version__, "torch", torch.__version__)
    print("input    two tensors from both ranks: zeros, and", turned.tolist(), "(transposed)")
    print("allreduce of the transposed one:", alone)
    for name, (expected, second, ahead) in rows.items():
        print(f"{name:22} expected {expected}; seen {second}; if it is the first: {ahead}")
    refused = "Tensor is required to be contiguous."
    as_told = all(second != expected and ahead == refused for expected, second, ahead in rows.values())
    sys.exit(not (as_told and alone == refused))
EOF
"$folder/venv/bin/horovodrun" --gloo -np 2 "$folder/venv/bin/python" "$folder/rank.py"
