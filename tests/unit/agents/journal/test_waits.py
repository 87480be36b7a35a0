"""What a rank waits for, and what its DataLoader workers do: of real processes, and of files as /proc has them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal import waits as module
from distconsole_agent.journal.waits import ProcessWaits

STARVED = {"step_ms": [20.0, 25.0], "data_ms": 15.0}
BLOCKED = "import ctypes,time; print(1, flush=True); ctypes.CDLL(None).vfork() or time.sleep(1000)"
"""A parent is in state D until the child of its vfork has another program: this one never has."""
TWO_WORKERS = """
import os, time
for busy in (True, False):
    if not os.fork():
        open("/proc/self/comm", "w").write("pt_data_worker")
        while busy:
            pass
        time.sleep(1000)
if not os.fork():
    time.sleep(1000)
print(1, flush=True)
time.sleep(1000)
"""


@contextmanager
def program(text: str) -> Iterator[int]:
    """Run a program until its first line, and kill its session at the end."""
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        child.stdout.readline()
        try:
            yield child.pid
        finally:
            os.killpg(child.pid, signal.SIGKILL)


def test_it_is_told_of_the_time_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = ProcessWaits()
    assert waits.look(os.getpid()) == {"cpu_wait": None, "disk_wait": None}
    found = waits.look(os.getpid())
    assert 0.0 <= found["cpu_wait"] <= 100.0
    assert found["disk_wait"] == 0.0
    monkeypatch.setattr(module.time, "monotonic_ns", lambda: 0)
    assert waits.look(os.getpid())["cpu_wait"] is None, "a clock that goes back tells nothing"


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    waits = ProcessWaits()
    for _ in range(2):
        assert waits.look(2**22 + 1) == {"cpu_wait": None, "disk_wait": None}
    assert waits.look_at_workers(2**22 + 1, STARVED) is None


def test_a_process_that_waits_for_a_disk_is_seen() -> None:
    with program(BLOCKED) as pid:
        waits = ProcessWaits()
        while waits.look(pid)["disk_wait"] != 100.0:
            os.sched_yield()


def test_workers_that_compute_are_told_from_those_that_rest_and_from_other_children() -> None:
    with program(TWO_WORKERS) as pid:
        waits, found = ProcessWaits(), None
        assert waits.look_at_workers(pid, STARVED) is None, "the first look has nothing to compare"
        while found is None or found[0] != 2 or found[1] < 20.0:
            found = waits.look_at_workers(pid, STARVED)
            os.sched_yield()
        assert found[1] <= 100.0
        assert found[2] == 0.0
        rests: dict[str, Any] = {"step_ms": [20.0, 25.0], "data_ms": 0.3}
        assert waits.look_at_workers(pid, rests) is None, "who does not wait for data is not asked"


def test_a_kernel_that_counts_waits_for_disks_is_believed(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "schedstat").write_text("5 5 5\n")
    stat = "7 (a ) b) S " + " ".join(["0"] * 38) + " {}\n"
    waits = ProcessWaits(str(tmp_path))
    (folder / "stat").write_text(stat.format(5))
    waits.look(7)
    (folder / "stat").write_text(stat.format(10**9))
    assert waits.look(7) == {"cpu_wait": 0.0, "disk_wait": 100.0}
