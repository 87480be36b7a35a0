"""Who a process is: owner, command and the rank above it, over real and made-up /proc trees."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

from distconsole_agent.telemetry.processes import MAX_COMMAND, ProcessTable, printable


def process(proc: Path, pid: int, parent: int, name: str = "python", command: str = "") -> Path:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} 1 1 0\n")
    (folder / "cmdline").write_text(command)
    (folder / "comm").write_text(f"{name}\n")
    return folder


def in_namespace(proc: Path, number: int) -> None:
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(f"pid:[{number}]")


def test_this_process_is_described_by_its_owner_and_command() -> None:
    facts = ProcessTable().facts(os.getpid())
    assert facts.user == pwd.getpwuid(os.getuid()).pw_name
    assert facts.command is not None
    assert "python" in facts.command or "pytest" in facts.command


def test_a_process_that_ended_is_described_by_nothing(tmp_path: Path) -> None:
    facts = ProcessTable(tmp_path).facts(4)
    assert (facts.user, facts.command) == (None, None)


def test_a_kernel_thread_is_named_by_its_comm(tmp_path: Path) -> None:
    process(tmp_path, 5, 2, name="kworker/0:1")
    assert ProcessTable(tmp_path).facts(5).command == "kworker/0:1"


def test_a_command_cannot_carry_terminal_escapes(tmp_path: Path) -> None:
    process(tmp_path, 5, 1, command="python\0train\x1b]0;owned\x07.py\0\u202e--lr\0\x9b31m\n")
    assert ProcessTable(tmp_path).facts(5).command == "python train ]0;owned .py --lr 31m"


def test_a_command_is_bounded() -> None:
    assert len(printable(b"x" * 10_000)) == MAX_COMMAND


def test_the_lineage_of_a_process_begins_with_itself_and_its_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        assert ProcessTable().lineage(child.pid)[:2] == (child.pid, os.getpid())
        assert child.pid not in ProcessTable().lineage(os.getpid())
    finally:
        child.communicate(b"\n", timeout=10)


def test_a_name_with_parentheses_does_not_hide_the_parent(tmp_path: Path) -> None:
    process(tmp_path, 7, 3, name="a) S 99 (b")
    process(tmp_path, 3, 1)
    assert ProcessTable(tmp_path).lineage(7) == (7, 3)


def test_a_loop_of_parents_ends(tmp_path: Path) -> None:
    process(tmp_path, 7, 8)
    process(tmp_path, 8, 7)
    assert ProcessTable(tmp_path).lineage(7) == (7, 8)


def test_on_the_host_a_pid_is_the_drivers_pid(tmp_path: Path) -> None:
    in_namespace(tmp_path, 4026531836)
    process(tmp_path, 7, 1)
    table = ProcessTable(tmp_path)
    assert table.is_same(7)
    assert not table.is_same(8)


def test_in_a_container_a_pid_is_believed_only_with_a_gpu_open(tmp_path: Path) -> None:
    in_namespace(tmp_path, 4026532999)
    process(tmp_path, 7, 1)
    (process(tmp_path, 8, 1) / "fd" / "9").symlink_to("/dev/nvidia0")
    table = ProcessTable(tmp_path)
    assert not table.is_same(7)
    assert table.is_same(8)
    assert not table.is_same(99)
