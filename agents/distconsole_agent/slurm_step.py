"""The process that srun is a child of, on the first node of a run below Slurm.

It starts srun, which starts the shims, and notes how srun ended: a step outlives its srun, so a
killed one would leave ranks that nobody watches. In a job of our own it then ends the job, with
the run's exit code. It reads no output and stops no rank itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from distconsole_agent.refusal import Refusal
from distconsole_agent.shim_calls import ask_shim
from distconsole_agent.slurm import STEP_ENDED
from distconsole_agent.slurm_words import read_complaint

PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Slurm sends them to every process of a job, so srun has them already."""

GONE_SECONDS = 60.0
"""How long a shim whose srun is gone may take to end its ranks."""

READ_SECONDS, LINGER_SECONDS = 10.0, 1.0
"""Where a host lets its user in only while a job runs there, the last entries must be read before
the job ends: the agent has so long to write them, and the console then to take them."""

KEPT = (
    "SLURM_CONF",
    "SLURM_JWT",
    "SLURM_CLUSTER_NAME",
    "SLURM_SUBMIT_DIR",
    "SLURM_SUBMIT_HOST",
)
OF_SLURM = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")


def main(argv: list[str]) -> int:
    """Run the step in ``--run DIR`` (its ``step.json``) to its end; return the run's exit code."""
    if len(argv) != 2 or argv[0] != "--run":
        sys.stderr.write("usage: step --run DIR\n")
        return 2
    run_dir = os.path.abspath(argv[1])
    with open(os.path.join(run_dir, "step.json"), encoding="ascii") as file:
        step: dict[str, Any] = json.load(file)
    for number in PASSED_ON:
        # A handler and not SIG_IGN, which srun would inherit.
        signal.signal(number, _hear_nothing)
    exit_code = _run_srun(run_dir, step["argv"])
    _write_end(run_dir, exit_code)
    _tell_shim(run_dir, exit_code)
    _wait_until(lambda: not _shim_lives(run_dir), GONE_SECONDS)
    if step.get("held"):
        ended = os.path.join(run_dir, "ended.json")
        if _wait_until(lambda: os.path.exists(ended), READ_SECONDS):
            time.sleep(LINGER_SECONDS)
    return _verdict(run_dir, exit_code)


def step_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return srun's environment.

    A job's options are in its variables, and srun would take them for its own: as many tasks as
    the job asked for, one GPU a task.
    """
    return {
        name: value
        for name, value in inherited.items()
        if name in KEPT or not name.startswith(OF_SLURM)
    }


def _run_srun(run_dir: str, argv: list[str]) -> int:
    """Return srun's exit code, 128+S where signal S ended it."""
    with open(os.path.join(run_dir, "step.log"), "ab") as log:
        try:
            srun = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=step_environment(os.environ),
                cwd="/",
            )
        except OSError as error:
            log.write(f"srun cannot be executed: {error}\n".encode())
            return 127
        code = srun.wait()
    return 128 - code if code < 0 else code


def _tell_shim(run_dir: str, exit_code: int) -> None:
    """Tell this node's shim, if it still has ranks, that their srun is gone."""
    if exit_code > 128:
        name = _signal_name(exit_code - 128)
        error = f"srun was killed by {name}"
    else:
        error = f"srun ended with code {exit_code}: {read_complaint(run_dir)}".rstrip(": ")
    told = {"op": "fail", "error": error, "exit_code": exit_code or 1}
    with contextlib.suppress(OSError, Refusal):
        ask_shim(os.path.join(run_dir, "shim.sock"), told, 10.0)


def _shim_lives(run_dir: str) -> bool:
    try:
        ask_shim(os.path.join(run_dir, "shim.sock"), {"op": "status"}, 10.0)
    except OSError:
        return False
    except Refusal:
        return True
    return True


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _write_end(run_dir: str, exit_code: int) -> None:
    path = os.path.join(run_dir, STEP_ENDED)
    with contextlib.suppress(OSError):
        with open(path + ".new", "w", encoding="ascii") as file:
            json.dump({"exit_code": exit_code}, file)
        os.rename(path + ".new", path)


def _verdict(run_dir: str, otherwise: int) -> int:
    try:
        with open(os.path.join(run_dir, "verdict.json"), encoding="ascii") as file:
            return int(json.load(file)["exit_code"])
    except (OSError, ValueError, KeyError, TypeError):
        return otherwise


def _wait_until(condition: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _hear_nothing(_number: int, _frame: object) -> None:
    """Let a signal be."""
