"""What is concluded from the stacks of a real torch: while it imports its compiler, compiles, and runs compiled code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from distconsole.model.diagnosis.calls import Call
from distconsole.runs.diagnosis.stacks import Does, what_it_does

pytestmark = pytest.mark.torch_ranks

RECORDS = """
import json, os, sys

stacks = {}

def keep(name):
    frame, places = sys._getframe(2), []  # below who calls this
    while frame is not None:
        code = frame.f_code
        places.append({"function": code.co_name, "file": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    stacks.setdefault(name, places)

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "torch._dynamo.trace_rules":
            keep("imports")

def backend(graph, inputs):
    keep("compiles")
    def run(*tensors):
        keep("runs")
        return graph.forward(*tensors)
    return run

import torch
model = torch.nn.Linear(4, 1)
sys.meta_path.insert(0, Finder)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.compile(model, backend=backend)(torch.ones(2, 4))
with open(sys.argv[1], "w") as kept:
    json.dump(stacks, kept)
os._exit(0)  # torch's own end takes a second
"""


def test_a_rank_compiles_only_while_the_compiler_runs(tmp_path: Path) -> None:
    script, kept = tmp_path / "train.py", tmp_path / "stacks.json"
    script.write_text(RECORDS)
    subprocess.run([sys.executable, script, kept], env=os.environ, check=True, timeout=120)
    does = {}
    for name, frames in json.loads(kept.read_bytes()).items():
        told = {"rank": 0, "alive": True, "threads": [{"main": True, "frames": frames}]}
        does[name] = what_it_does(msgspec.convert(told, Call))
    assert does == {"imports": Does.IMPORTS, "compiles": Does.COMPILES, "runs": Does.OTHER}
