"""What /proc says of real processes, each of which waits for something else."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.roll_call import facts
from distconsole_agent.system.procfs import all_processes
from fakes.shims import wait_until

Start = Callable[..., int]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a Python process that runs a text and return its pid."""
    made: list[subprocess.Popen[bytes]] = []

    def begin(text: str, *arguments: str) -> int:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", text, *arguments], stdin=pipe)
        made.append(process)
        return process.pid

    yield begin
    for process in made:
        process.kill()
        process.communicate()


def main_thread(pid: int) -> dict[str, Any]:
    return facts.describe_main_thread(pid, facts.read_status(pid))


def waits(pid: int, kind: str) -> str:
    """Wait until the main thread of ``pid`` waits for a ``kind``; return for which one."""

    def there() -> bool:
        found = main_thread(pid)["waits_for"]
        return found is not None and found["kind"] == kind

    wait_until(f"{pid} in {kind}", there)
    return str(main_thread(pid)["waits_for"]["what"])


def test_a_read_of_stdin_names_the_pipe(start: Start) -> None:
    pid = start("import sys; sys.stdin.buffer.read()")
    assert waits(pid, "pipe") == str(Path(f"/proc/{pid}/fd/0").readlink())


def test_a_read_of_a_socket_names_its_peer(start: Start) -> None:
    pid = start(
        "import socket\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "here = socket.create_connection(listener.getsockname())\n"
        "there, peer = listener.accept()\n"
        "here.recv(1)"
    )
    address, _, port = waits(pid, "socket").rpartition(":")
    assert address == "127.0.0.1"
    assert port.isdigit()


def test_who_waits_for_a_lock_on_a_file_is_told_who_holds_it(start: Start, tmp_path: Path) -> None:
    text = "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); time.sleep(600)"
    path = tmp_path / "lock"
    holder = start(text, str(path))
    wait_until("held", lambda: f" {holder} " in Path("/proc/locks").read_text())
    assert waits(start(text, str(path)), "lock") == f"pid {holder}, {path}"


def test_a_lock_of_threads_and_a_child_are_told_apart(start: Start) -> None:
    assert (
        waits(start("import threading; l = threading.Lock(); l.acquire(); l.acquire()"), "lock")
        == ""
    )
    pid = start(
        "import os, time\nchild = os.fork()\nif not child: time.sleep(600)\nos.waitpid(child, 0)"
    )
    child = waits(pid, "child")
    (only,) = facts.children_of(pid, all_processes())
    assert child == f"pid {only['pid']}"
    os.kill(only["pid"], 9)


def test_what_runs_waits_for_nothing_and_uses_its_processor(start: Start) -> None:
    pid = start("while True: pass")
    first = facts.look(pid)
    assert first is not None

    def used() -> bool:
        now = facts.look(pid)
        return now is not None and now.main_cpu > first.main_cpu + 0.05

    wait_until("cpu", used)
    assert main_thread(pid)["waits_for"] is None
    assert facts.look(2**22) is None


def test_a_process_is_described_as_far_as_it_may_be_looked_into() -> None:
    told = {"state": "S", "wchan": "", "syscall": None, "tracer": 0}
    assert facts.waits_for(1, told) is None
    assert facts.waits_for(1, {**told, "wchan": "pipe_read"}) == {"kind": "pipe", "what": ""}
    assert facts.waits_for(1, {**told, "wchan": "futex_wait_queue"}) == {
        "kind": "lock",
        "what": "",
    }
    assert facts.waits_for(1, {**told, "tracer": 9}) == {"kind": "debugger", "what": "pid 9"}
    assert facts.waits_for(1, {**told, "state": "D"}) == {"kind": "disk", "what": ""}
