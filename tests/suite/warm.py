"""An interpreter that has torch and the hook, and forks itself for each script; it judges nothing.

A start of torch costs two seconds of a processor, its end one more, and most scripts here are about what
happens in between. A fork of a process is watched as a process of its own (``test_processes``), and goes
through its exit handlers; who needs a fresh interpreter says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """\
import atexit, json, os, runpy, sys, threading
import torch
torch.optim.SGD([torch.zeros(1)], lr=0.1)  # which imports the compiler
job = None
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if not child:
        break
    job = None
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
if job is not None:
    for number, name in enumerate((os.devnull, job["out"], job["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv[:] = [job["script"]]
    sys.path.insert(0, job["folder"])
    code = 0
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    # What an interpreter does at its end, without taking torch apart.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
"""


class Warm:
    """The interpreter; ``environment`` is what all its scripts have."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path, environment: Mapping[str, str], out: Path, err: Path) -> int:
        """Run a script in a process of its own; return its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        job = {
            "script": str(script),
            "folder": str(script.parent),
            "out": str(out),
            "err": str(err),
            "environment": dict(environment),
        }
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=30)
