#!/usr/bin/env bash
# DLPack exports a lazily negated tensor with the wrong sign, to NumPy as to torch; a lazily conjugated one it refuses.
#
# Package:  torch 2.13.0 with numpy 2.4.6.
# Expected: the values of the tensor, or the BufferError that torch raises for the other lazy view ("Can't export tensors
#           with the conjugate bit set"); Tensor.numpy() raises for both. numpy.from_dlpack: "Create a NumPy array from
#           an object implementing the __dlpack__ protocol" (https://numpy.org/doc/2.4/reference/generated/numpy.from_dlpack.html).
# Seen:     z.conj().imag, an ordinary real tensor, arrives as z.imag: every sign is wrong, without error.
# Upstream: no issue found in pytorch/pytorch or dmlc/dlpack (safetensors/safetensors#831 is the same in that library).
#           2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/export.py" <<'EOF'
import sys
import numpy
import torch

print("package  torch", torch.__version__, "numpy", numpy.__version__)
conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
imaginary = conjugate.imag
expected = imaginary.tolist()
numpy_saw = numpy.from_dlpack(imaginary).tolist()
torch_saw = torch.from_dlpack(imaginary).tolist()
print(f"numpy.from_dlpack(z.conj().imag)  expected {expected}, seen {numpy_saw}")
print(f"torch.from_dlpack(z.conj().imag)  expected {expected}, seen {torch_saw}")
refused = []
for name, export in (("from_dlpack(z.conj())", lambda: numpy.from_dlpack(conjugate)), ("numpy()", imaginary.numpy)):
    try:
        print(f"{name} gives", export())
    except (BufferError, RuntimeError) as error:
        refused.append(name)
        print(f"{name} is refused: {error}")
sys.exit(not (expected == [-2, 4] and numpy_saw == torch_saw == [2, -4] and len(refused) == 2))
EOF
"$folder/venv/bin/python" "$folder/export.py"
