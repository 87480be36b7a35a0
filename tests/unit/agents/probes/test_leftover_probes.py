"""What jobs leave behind is found on this machine for real: processes, and files in shared memory."""

import json
import mmap
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import probes
from distconsole_agent.probes.host import leftovers
from distconsole_agent.system.procfs import Process, read_process
from suite.programs import free_port


@contextmanager
def child(code: str, *words: str, **environment: str) -> Iterator[int]:
    """A Python process that has said that it is ready."""
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(code) + "\nprint(flush=True); time.sleep(600)",
            *list(words),
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.kill()


def of_pid(facts: dict[str, Any], pid: int) -> dict[str, Any] | None:
    return next((each for each in facts["processes"] if each["pid"] == pid), None)


@pytest.mark.parametrize(
    ("files", "state"), [(("ended.json",), "ended"), ((), "going on"), (None, "gone")]
)
def test_a_process_of_a_run_says_whether_the_run_is_over(
    files: tuple[str, ...] | None, state: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run-7"
    for name in files or ():
        folder.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    if files == ():
        folder.mkdir()
    with child("import time", "secretword", DISTCONSOLE_RUN_DIR=str(folder)) as pid:
        facts = probes.run("proc", {}, 10.0)
    found = of_pid(facts, pid)
    assert (found["run"], found["run_state"]) == ("run-7", state)
    assert found["uid"] == facts["uid"] == os.getuid()
    assert 0 <= found["age_seconds"] < 60
    assert "secretword" not in json.dumps(facts)
    assert "train" not in found["name"]


def test_a_process_of_free_threaded_python_is_a_leftover(tmp_path: Path) -> None:
    named = "import time; open('/proc/self/comm', 'w').write('python3.14t')"
    with child(named, DISTCONSOLE_RUN_DIR=str(tmp_path / "run-7")) as pid:
        found = of_pid(probes.run("proc", {}, 10.0), pid)
    assert (found["name"], found["run"]) == ("python3.14t", "run-7")


def test_an_embedded_node_sees_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(leftovers.EMBEDDED, "m-node1")
    marks = [
        {leftovers.EMBEDDED: "m-node1"},
        {leftovers.EMBEDDED: "m-node2"},
        {leftovers.EMBEDDED: ""},
    ]
    folder = str(tmp_path / "run-7")
    with ExitStack() as stack:
        own, *others = [
            stack.enter_context(child("import time", DISTCONSOLE_RUN_DIR=folder, **mark))
            for mark in marks
        ]
        facts = probes.run("proc", {}, 10.0)
    assert of_pid(facts, own) is not None
    assert [of_pid(facts, pid) for pid in others] == [None, None]


def test_the_agent_itself_is_no_leftover(tmp_path: Path) -> None:
    code = "import time"
    archive = "/x/agent-0123456789abcdef.pyz"
    with child(code, archive, "agent", DISTCONSOLE_RUN_DIR=str(tmp_path)) as pid:
        assert of_pid(probes.run("proc", {}, 10.0), pid) is None


def test_a_process_whose_words_name_us_is_a_leftover_all_the_same(tmp_path: Path) -> None:
    words = ("/home/me/distconsole_agent/data", "/home/me/agent-resnet.pyz")
    with child("import time", *words, DISTCONSOLE_RUN_DIR=str(tmp_path)) as pid:
        assert of_pid(probes.run("proc", {}, 10.0), pid) is not None


def test_a_process_with_a_cuda_context_says_which_gpus_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvm, gpu = tmp_path / "nvidia-uvm", tmp_path / "nvidia3"
    for path in (uvm, gpu):
        path.touch()
    monkeypatch.setattr(leftovers, "_CUDA", str(uvm))
    monkeypatch.setattr(leftovers, "_GPU", re.compile(rf"{tmp_path}/nvidia(\d+)$"))
    code = "import sys, time; files = [open(path) for path in sys.argv[1:]]"
    run = {"DISTCONSOLE_RUN_DIR": str(tmp_path)}
    with child(code, str(uvm), str(gpu), **run) as computes, child(code, str(gpu), **run) as asks:
        facts = probes.run("proc", {}, 10.0)
        assert [(of_pid(facts, pid) or {})["gpus"] for pid in (computes, asks)] == [[3], []]


def test_the_holder_of_a_rendezvous_port_is_found(tmp_path: Path) -> None:
    code = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1])))"
    port = free_port()
    with child(code, str(port), DISTCONSOLE_RUN_DIR=str(tmp_path)) as pid:
        found = of_pid(probes.run("proc", {"ports": [port]}, 10.0), pid)
        state = probes.run("port", {"ports": [port]}, 5.0)["ports"][str(port)]
    assert found["ports"] == [port]
    assert (state["holder"]["pid"], state["holder"]["name"]) == (pid, found["name"])
    assert "command" not in state["holder"]


def test_a_process_asleep_in_the_kernel_is_told_only_if_it_sleeps_on(tmp_path: Path) -> None:
    # Between vfork(2) and its child's exec a process sleeps as on a dead disk: state D.
    code = """
    import ctypes, os, sys, time
    if ctypes.PyDLL(None).vfork() == 0:
        os.write(1, b"%d\\n" % os.getpid())
        os.read(0, 1)
    os._exit(0)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        below = int(process.stdout.readline())
        try:
            sleeper = read_process(process.pid)
            assert sleeper.state == "D"
            told = leftovers._stuck([sleeper], 0.3)
            assert [(each["pid"], each["state"]) for each in told] == [(process.pid, "D")]
            assert told[0]["wait_seconds"] >= 0.3
            assert leftovers._stuck([sleeper._replace(starttime=1)], 0.3) == []
        finally:
            process.kill()
            os.kill(below, 9)


def test_an_ended_process_that_nobody_waits_for_is_told_with_its_parent(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        every = {
            pid: found
            for pid in (process.pid, os.getpid())
            if (found := read_process(pid)) is not None
        }
        told = leftovers._dead(every[process.pid], every)
    assert (told["state"], told["threads"]) == ("Z", 0)
    assert told["parent"]["pid"] == os.getpid()


@pytest.mark.parametrize(
    ("name", "kind", "pid"),
    [
        ("nccl-aB3dEf", "NCCL", None),
        ("torch_4242_1804289383_7", "torch", 4242),
        ("vader_segment.node1.1000.8f1a0001.0", "Open MPI", None),
        ("sm_segment.node1.1000.8f1a0001.0", "Open MPI", None),
        ("psm_3f9a11c2", "Python", None),
        ("psm2_shm.1000000000000000000000", "PSM2", None),
        ("sem.loky-4242-abc", "joblib", 4242),
        ("sem.something", "semaphore", None),
        ("cuda.shm.3e8.1092.1", "CUDA", 0x1092),
        ("__KMP_REGISTERED_LIB_4242_1000", "OpenMP", 4242),
        ("distconsole-1000", "", None),
        ("pulse-shm-1234", "", None),
        ("tmpabcdef", "", None),
    ],
)
def test_a_name_in_shared_memory_says_who_made_it(name: str, kind: str, pid: int | None) -> None:
    assert leftovers.kind_of(name) == (kind, pid)


def test_shared_memory_that_nobody_has_is_told_from_what_is_mapped(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    names = ["nccl-mapped", "nccl-stale", "nccl-young", f"torch_{dead.pid}_1_1", "other"]
    names.append(f"torch_{os.getpid()}_1_1")
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 8192)
    (tmp_path / "nccl-link").symlink_to("/etc/passwd")
    later = time.time() + 3600
    with (tmp_path / "nccl-mapped").open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), 8192)
    try:
        facts = leftovers.find_entries(str(tmp_path), later, time.monotonic() + 20)
    finally:
        mapped.close()
    assert {entry["name"]: entry["used"] for entry in facts["entries"]} == {
        "nccl-mapped": True,
        "nccl-stale": False,
        "nccl-young": False,
        f"torch_{dead.pid}_1_1": False,
        f"torch_{os.getpid()}_1_1": True,
    }
    assert all(entry["bytes"] >= 8192 for entry in facts["entries"])
    assert leftovers.find_entries(str(tmp_path), time.time(), 0.0)["entries"] == []
    late = leftovers.find_entries(str(tmp_path), later, time.monotonic() - 1)
    used = {entry["name"]: entry["used"] for entry in late["entries"]}
    assert used["nccl-stale"] is None, "where the time is up nobody is called dead"
    gone = leftovers.find_entries(str(tmp_path / "gone"), time.time(), 0.0)
    assert (gone["entries"], gone["error"]) == ([], ""), "nothing is left where there is no folder"


def test_what_is_found_goes_on_and_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "YOUNG_SECONDS", 0.0)
    path = Path(f"/dev/shm/sem.loky-4242-{os.getpid()}")  # whose process is gone
    path.write_bytes(bytes(8192))
    try:
        with child("import time", DISTCONSOLE_RUN_DIR="/gone/run-7") as pid:
            assert of_pid(probes.run("proc", {}, 10.0), pid) is not None
            facts = probes.run("shm", {}, 10.0)
            assert path.name in json.dumps(facts)
            assert (facts["error"], facts["uid"]) == ("", os.getuid())
            assert isinstance(facts["all_processes_seen"], bool)
            assert read_process(pid) is not None
            assert path.exists()
    finally:
        path.unlink()


@pytest.mark.parametrize(
    ("parent", "adopted"), [("systemd", True), ("tini", True), ("bash", False), (None, False)]
)
def test_a_process_lost_its_parent_where_init_took_it(parent: str | None, adopted: bool) -> None:
    process = None if parent is None else Process(1, 0, 0, parent, "S", 9.0, 1, False)
    assert leftovers._is_orphan(process) is adopted


def test_a_name_of_a_process_may_hold_anything(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    rest = " ".join(["S", "3", *"000000", *["1"] * 12])
    (tmp_path / "7/stat").write_bytes(b"7 (a) b\x1b[2J (c) " + rest.encode() + b"\n")
    process = read_process(7, str(tmp_path))
    assert (process.name, process.ppid, process.state) == ("a) b [2J (c", 3, "S")
    assert not process.kernel
