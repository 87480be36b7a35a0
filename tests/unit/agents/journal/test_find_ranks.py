"""Ranks are found by what their engine told them, parents before their children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from distconsole_agent.journal.roll_calls import find_ranks

CHILD = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"


def test_a_rank_is_the_first_process_that_an_engine_gave_its_number(tmp_path: Path) -> None:
    told = [
        {"RANK": "3", "SLURM_PROCID": "0"},
        {"OMPI_COMM_WORLD_RANK": "1"},
        {"RANK": "nonsense"},
        {},
    ]
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD],
            env={"DISTCONSOLE_RUN_DIR": str(tmp_path), **each},
            stdin=pipe,
            stdout=pipe,
        )
        for each in told
    ]
    try:
        for process in started:
            process.stdout.readline()
        assert find_ranks(str(tmp_path)) == {3: started[0].pid, 1: started[1].pid}
    finally:
        for process in started:
            process.communicate(b"\n")
