"""What follows when the srun of a run has ended, on the run's first node.

A step outlives its srun, so a killed one would leave ranks that nobody watches: the shim is told. A
job of our own ends with this process, which therefore waits until the run's end has been read, and
leaves with the run's exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.engines.slurm_words import read_complaint, read_srun_death
from distconsole_agent.server.shim_calls import ask_shim

NOT_OURS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Slurm sends them to every process of a job that it ends."""

GONE_SECONDS = 60.0
"""How long a shim whose srun is gone may take to end its ranks."""

READ_SECONDS, LINGER_SECONDS = 10.0, 1.0
"""Where a host lets its user in only while a job runs there, the last entries must be read before
the job ends: the agent has so long to write them, and the console then to take them."""


def main(argv: list[str]) -> int:
    """Attend to the end of the srun of ``--run DIR``, which ended with ``--code N``.

    Returns:
        The run's exit code, which becomes that of the job.
    """
    held = argv[-1:] == ["--held"]
    words = argv[:-1] if held else argv
    if len(words) != 4 or words[::2] != ["--run", "--code"] or not words[3].isdigit():
        sys.stderr.write("usage: step-ended --run DIR --code N [--held]\n")
        return 2
    run_dir, exit_code = os.path.abspath(words[1]), int(words[3])
    for number in NOT_OURS:
        signal.signal(number, signal.SIG_IGN)
    _tell_shim(run_dir, exit_code)
    _wait_until(lambda: not _shim_lives(run_dir), GONE_SECONDS)
    if held:
        ended = os.path.join(run_dir, "ended.json")
        if _wait_until(lambda: os.path.exists(ended), READ_SECONDS):
            time.sleep(LINGER_SECONDS)
    return _verdict(run_dir, exit_code)


def _tell_shim(run_dir: str, exit_code: int) -> None:
    """Tell this node's shim, if it still has ranks, that their srun is gone."""
    death = read_srun_death(run_dir)
    if death is not None:
        error = death.error
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
