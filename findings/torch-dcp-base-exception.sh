#!/usr/bin/env bash
# What torch.distributed.checkpoint raises for a checkpoint that cannot be loaded is no Exception: `except Exception`,
# with which a script falls back to an older checkpoint, lets it through, and the job ends.
#
# Package:  torch 2.13.0 (torch.distributed.checkpoint).
# Expected: "CheckpointException: Exception raised if failure was detected as part of a checkpoint load or save"
#           (its docstring); "BaseException … is not meant to be directly inherited by user-defined classes (for that,
#           use Exception)" (https://docs.python.org/3/library/exceptions.html).
# Seen:     it derives from BaseException, like KeyboardInterrupt: a missing key or another size passes `except
#           Exception` in the script, in logging and in thread pools' callbacks.
# Upstream: no issue found in pytorch/pytorch. 2026-11-28.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check torch==2.13.0 numpy==2.4.6

cat >"$folder/load.py" <<'EOF'
import logging, sys, warnings
import torch
import torch.distributed.checkpoint as dcp

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
older, newer = f"{sys.argv[1]}/older", f"{sys.argv[1]}/newer"
dcp.save({"w": torch.ones(2)}, checkpoint_id=older)
dcp.save({"w": torch.ones(3)}, checkpoint_id=newer)


def resume():
    for checkpoint in (newer, older):
        try:
            state = {"w": torch.zeros(2)}
            dcp.load(state, checkpoint_id=checkpoint)
            return state["w"].tolist()
        except Exception as error:
            print("falls back after", type(error).__name__)
    return None


print("package  torch", torch.__version__)
try:
    seen = resume()
except BaseException as error:
    seen = f"{type(error).__name__} out of the `except Exception`"
bases = [each.__name__ for each in dcp.CheckpointException.__mro__]
print(f"resume from the older checkpoint: expected [1.0, 1.0], seen {seen}")
print(f"CheckpointException: expected an Exception, seen {bases}")
sys.exit(not (str(seen).startswith("CheckpointException") and "Exception" not in bases))
EOF
"$folder/venv/bin/python" "$folder/load.py" "$folder"
