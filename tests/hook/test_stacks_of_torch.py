"""What is concluded from the stacks of a real torch: while it imports its compiler, compiles, and runs compiled code."""

from __future__ import annotations

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
import json, sys, threading

stacks = {}

def keep(name, frame):
    places = []
    while frame is not None:
        code = frame.f_code
        places.append({"function": code.co_name, "file": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    stacks.setdefault(name, places)

def profile(frame, event, argument):
    file = frame.f_code.co_filename
    if threading.current_thread() is not threading.main_thread() or event != "call":
        return
    if file.endswith("_dynamo/trace_rules.py") and frame.f_code.co_name == "<module>":
        keep("imports", frame)
    if file.endswith("_dynamo/output_graph.py") and frame.f_code.co_name == "call_user_compiler":
        keep("compiles", frame)
    if file.endswith("_dynamo/eval_frame.py") and ready:
        keep("runs", frame)

ready = False
import torch
model = torch.nn.Linear(4, 1)
sys.setprofile(profile)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
compiled = torch.compile(model, backend="eager")
compiled(torch.ones(2, 4))
ready = True
compiled(torch.ones(2, 4))
sys.setprofile(None)
json.dump(stacks, open(sys.argv[1], "w"))
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
