"""An interpreter that has torch, and forks itself for each script; it judges nothing.

A start of torch costs two seconds of a processor, its end one more, and most scripts here are about what
happens in between. A fork of a process is watched as a process of its own (``test_processes``), and goes
through its exit handlers; who needs a fresh interpreter says so.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAM = """\
import atexit, json, os, runpy, sys, threading
job = None
for line in sys.stdin:
    children = []
    for job in json.loads(line):
        children.append(os.fork())
        if not children[-1]:
            break
    else:
        job = None
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)
        continue
    break
if job is not None:
    for number, name in enumerate((os.devnull, job["out"], job["err"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(job["environment"])
    os.chdir(job["folder"])
    sys.argv[:] = [job["script"], *job["words"]]
    sys.path.insert(0, os.path.dirname(job["script"]))
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
os._exit(0)
"""

WHOLE_TORCH = """
import torch
torch.optim.SGD([torch.zeros(1)], lr=0.1)  # which imports the compiler
"""


@dataclass(frozen=True)
class Script:
    """One process to be: what it runs, what its environment has more, and where its output goes."""

    path: Path
    folder: Path
    environment: Mapping[str, str]
    out: Path
    err: Path
    words: Sequence[str] = ()


class Warm:
    """The interpreter; ``environment`` and what ``head`` imports is what all its scripts have."""

    def __init__(self, environment: Mapping[str, str], head: str = WHOLE_TORCH) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", head + PROGRAM],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *scripts: Script) -> list[int]:
        """Run scripts at the same time, in a process each; return their exit codes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        jobs = [
            {
                "script": str(script.path),
                "folder": str(script.folder),
                "out": str(script.out),
                "err": str(script.err),
                "environment": dict(script.environment),
                "words": list(script.words),
            }
            for script in scripts
        ]
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        """End it; what still runs after a test that was given up ends too."""
        try:
            self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            raise
