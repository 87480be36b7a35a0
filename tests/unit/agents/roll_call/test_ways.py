"""How a worker server is asked that is not as it should be; real ones answer in tests/hook."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.roll_call import ways
from distconsole_agent.roll_call.calling import CUT, Seat, call_ranks
from distconsole_agent.roll_call.ways import (
    WayRefusedError,
    ask_server_for_any,
    find_server,
    stacks_by_server,
)
from distconsole_agent.system import unix
from suite.programs import run_to_end

STACK = b'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'


class Server:
    """Answers each request by its handler's words in ``answers``; to one without any it says nothing."""

    def __init__(self, path: str, answers: dict[str, bytes]) -> None:
        self.path = path
        self.asked: list[str] = []
        self.answers = answers
        self._open: list[socket.socket] = []
        self._listener = unix.listen(path, 8)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()
        for sock in (self._listener, *self._open):
            sock.close()

    def hang_up(self) -> None:
        """End the requests that were not answered."""
        while self._open:
            self._open.pop().close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            handler = sock.recv(4096).split(b" ")[1].decode().removeprefix("/handler/")
            self.asked.append(handler)
            if handler in self.answers:
                sock.sendall(b"HTTP/1.1 " + self.answers[handler])
                sock.close()
            else:
                self._open.append(sock)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    answers = {
        "new": b"404 Not Found\r\n\r\nno handler",
        "old": b"200 OK\r\nContent-Type: text/plain\r\n\r\n" + STACK,
        "broken": b"500 Internal Server Error\r\n\r\nHandler broken failed: no \x1bmemory",
    }
    made = Server(str(tmp_path / "7-1.server"), answers)
    yield made
    made.close()


def test_an_older_torch_is_asked_by_the_handlers_that_it_has(server: Server) -> None:
    assert ask_server_for_any(server.path, ("new", "old"), 5.0) == STACK
    with pytest.raises(WayRefusedError, match="failed: no"):
        ask_server_for_any(server.path, ("new", "broken", "old"), 5.0)
    with pytest.raises(WayRefusedError, match="has no new"):
        ask_server_for_any(server.path, ("new", "new"), 5.0)


def test_a_server_that_owes_an_answer_is_asked_again_once_it_has_given_it(server: Server) -> None:
    with pytest.raises(WayRefusedError, match=f"no answer within 0.1 s: {ways.HELD}"):
        stacks_by_server(server.path, "R", 0.05)
    with pytest.raises(
        WayRefusedError, match=f"0 s after a request there is no answer: {ways.HELD}"
    ):
        stacks_by_server(server.path, "R", 0.05)
    assert server.asked == ["dump_traceback"]
    server.answers["dump_traceback"] = b"200 OK\r\n\r\n" + STACK
    server.hang_up()
    (thread,) = stacks_by_server(server.path, "R", 5.0)
    assert thread["frames"] == [{"function": "f", "file": "a.py", "line": 3}]
    assert server.asked == ["dump_traceback"] * 2


def test_no_descriptor_is_kept_of_a_rank_that_is_gone(server: Server, tmp_path: Path) -> None:
    with pytest.raises(WayRefusedError, match="no answer"):
        stacks_by_server(server.path, "R", 0.05)
    server.hang_up()
    other = Server(str(tmp_path / "8-1.server"), {})
    try:
        with pytest.raises(WayRefusedError, match="no answer"):
            stacks_by_server(other.path, "R", 0.05)
        assert (server.path in ways._unanswered, other.path in ways._unanswered) == (False, True)
        other.hang_up()
        assert ways._seconds_owed(other.path) is None
    finally:
        other.close()


@pytest.mark.parametrize(("state", "why"), [("T", "stopped"), ("t", "a debugger")])
def test_a_process_that_does_not_run_is_not_asked(server: Server, state: str, why: str) -> None:
    with pytest.raises(WayRefusedError, match=why):
        stacks_by_server(server.path, state, 5.0)
    assert server.asked == []


EMPTY = (
    b'{"comm_lib_version":"","nccl_comm_state":{},"pg_config":{},"pg_status":{},"version":"2.10"}'
)
ALL_REDUCE = b"""{"collective_seq_id":%d,"input_dtypes":["Float"],"input_sizes":[[4]],"is_p2p":false,"op_id":1,
"output_dtypes":["Float"],"output_sizes":[[4]],"p2p_seq_id":0,"pg_id":0,"process_group":["0","default_pg"],
"profiling_name":"%s:all_reduce","record_id":0,"retired":%s,"state":"scheduled","time_created_ns":%d}"""


def called_with(folder: Path, answers: dict[str, bytes]) -> dict[str, Any]:
    """Return the call of this process, whose server answers so."""
    made = Server(str(folder / f"{os.getpid()}-1.server"), answers)
    try:
        (call,) = call_ranks([Seat(os.getpid(), {"rank": 0}, "")], str(folder), 5.0)
    finally:
        made.close()
    return call


def of_torch_2_15(nccl2: bytes, health: bytes) -> dict[str, bytes]:
    """What a rank's server answers: the format is that of torch 2.15.0, where ``nccl2`` needs a GPU to record."""
    gloo = EMPTY[:-1] + b',"entries":[%s]}' % (ALL_REDUCE % (3, b"gloo", b"true", 10**18))
    answers = {"dump_traceback": STACK, "fr_trace_json": gloo}
    answers |= {"fr_trace_json?backend=nccl2": nccl2, "c10d_health_check": health}
    return {name: b"200 OK\r\n\r\n" + body for name, body in answers.items()}


UNHEALTHY = "torch: backend nccl2 met a timeout or an error"


@pytest.mark.parametrize(
    ("health", "note"),
    [
        (b'{"healthy":true,"unhealthy_backends":[]}', ""),
        (b'{"healthy":false,"unhealthy_backends":["nccl2"]}', UNHEALTHY),
    ],
)
def test_collectives_of_torch_2_15_are_read(tmp_path: Path, health: bytes, note: str) -> None:
    waits = ALL_REDUCE % (41, b"nccl2", b"false", 2 * 10**18)
    nccl2 = EMPTY[:-1] + b',"entries":[%s]}' % waits
    call = called_with(tmp_path, of_torch_2_15(nccl2, health))
    told = [(each["backend"], each["seq"], each["state"]) for each in call["collectives"]]
    assert told == [("nccl2", 41, "scheduled"), ("gloo", 3, "completed")]
    assert call["note"] == note


@pytest.mark.parametrize("lacks", ["c10d_health_check", "fr_trace_json?backend=nccl2"])
def test_gloos_collectives_stay_where_the_rest_is_not_answered(tmp_path: Path, lacks: str) -> None:
    answers = of_torch_2_15(EMPTY, b'{"healthy":true,"unhealthy_backends":[]}')
    answers[lacks] = b"404 Not Found\r\n\r\n"
    call = called_with(tmp_path, answers)
    assert [each["backend"] for each in call["collectives"]] == ["gloo"]
    assert call["note"] == ""


SLEEPS = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(4, int(sys.argv[1]), 0, 0, 0)
print("up", flush=True)
time.sleep(600)
"""
ASKS = """
import sys
from distconsole_agent.roll_call.calling import Seat, call_ranks
(call,) = call_ranks([Seat(int(sys.argv[1]), {"rank": 0}, "")], "/nowhere", 3.0)
for each in [{"way": call["way"], "why": ""}, *call["refused"]]:
    print(each["way"], each["why"])
"""
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
SPY = ways.find_py_spy(sys.executable)
as_another = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or SPY is None,
    reason="needs root, setpriv (Debian: util-linux) and py-spy",
)


def called_by_nobody(owner: Sequence[str], dumpable: int) -> list[str]:
    """Return which way uid 65534 gets to the stacks of a process of ``owner``, then each that is refused, and why."""
    command = [*owner, sys.executable, "-c", SLEEPS, str(dumpable)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            asks = [*NOBODY, sys.executable, "-c", ASKS, str(process.pid)]
            done = run_to_end(asks, check=True, cwd="/")
        finally:
            process.kill()
    return done.stdout.splitlines()


@as_another
def test_ones_own_process_is_looked_into() -> None:
    assert called_by_nobody(NOBODY, 1)[0].rstrip() == "py-spy"


@as_another
@pytest.mark.parametrize(
    ("owner", "dumpable", "why"),
    [
        (NOBODY, 0, "it forbids to be looked into (PR_SET_DUMPABLE"),
        ([], 1, "it is uid 0's, and this is uid 65534"),
    ],
    ids=["not dumpable", "another user"],
)
def test_a_refused_look_names_what_it_lacks(owner: Sequence[str], dumpable: int, why: str) -> None:
    way, *refused = called_by_nobody(owner, dumpable)
    told = dict(line.split(" ", 1) for line in refused)
    assert (way.rstrip(), set(told)) == ("proc", {"server", "py-spy", "proc"})
    for each in ("py-spy", "proc"):
        assert why in told[each]
        assert told[each].endswith("without CAP_SYS_PTRACE")


def test_a_kernel_that_lets_no_one_look(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ptrace_scope").write_text("3\n")
    monkeypatch.setattr(ways, "YAMA", str(tmp_path / "ptrace_scope"))
    assert "kernel.yama.ptrace_scope is 3: nobody may look" in ways.lacking(os.getpid())


def test_a_missing_py_spy_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WayRefusedError, match=r"~/\.local/bin.*distconsole\[diagnosis\]"):
        ways.stacks_by_py_spy(os.getpid(), str(tmp_path / "python3"), "S", 1.0)


UP = "import time; print('up', flush=True); time.sleep(600)"
OWN_READERS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"))
    for name in ("python3.14", "python3.15")
]


@contextmanager
def sleeping(python: Path | str, script: str = UP) -> Iterator[int]:
    """Yield the pid of a process that has printed ``up``."""
    with subprocess.Popen([python, "-S", "-c", script], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"up\n"
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def called_3_14(tmp_path: Path) -> Path:
    """This Python by another name, from which its version is taken."""
    copy = tmp_path / "python3.14"
    shutil.copy(Path(sys.executable).resolve(), copy)
    return copy


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python can read another's stacks")
def test_a_python_that_cannot_read_another_says_so_unless_its_name_does(called_3_14: Path) -> None:
    with sleeping(sys.executable) as pid:
        assert ways.stacks_by_python(pid, "S", 5.0) is None
    with (
        sleeping(called_3_14) as pid,
        pytest.raises(WayRefusedError, match="cannot read the stacks"),
    ):
        ways.stacks_by_python(pid, "S", 5.0)


def test_a_build_for_debugging_is_taken_for_python(tmp_path: Path) -> None:
    for name in ("python3.14t", "python3.13d", "python3.14td"):
        shutil.copy(Path(sys.executable).resolve(), tmp_path / name)
        with sleeping(tmp_path / name) as pid:
            assert ways.runs_python(pid), name


def test_an_interpreter_that_was_replaced_is_not_started(called_3_14: Path) -> None:
    with sleeping(called_3_14) as pid:
        called_3_14.unlink()
        with pytest.raises(WayRefusedError, match=r"python3\.14 \(deleted\) is another file here"):
            ways.stacks_by_python(pid, "S", 5.0)


SORTS = """
import threading, time
def load_image(path):
    print('up', flush=True)
    time.sleep(600)
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
def main():
    sorted([1], key=load_image)
main()
"""


@pytest.mark.parametrize("python", OWN_READERS)
def test_without_py_spy_its_python_reads_it(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    monkeypatch.setattr(ways, "find_py_spy", lambda _: None)
    with sleeping(python, SORTS) as pid:
        (call,) = call_ranks([Seat(pid, {"rank": 0}, "")], "/nowhere", 5.0)
    assert (call["way"], next(each["way"] for each in call["refused"])) == ("python", "py-spy")
    main = call["threads"][0]
    places = [(frame["function"], frame["line"]) for frame in main["frames"]]
    assert (main["tid"], main["main"], places[0]) == (pid, True, ("load_image", 5))
    if python == "python3.14":  # reads up to sorted(), which is C code
        assert (places[1:], call["note"]) == ([], CUT)
    else:
        assert (places[1:], call["note"]) == ([("main", 8), ("<module>", 9)], "")


@pytest.mark.parametrize("python", OWN_READERS)
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_rank_that_is_read_is_not_written_or_stopped(tmp_path: Path, python: str) -> None:
    log = tmp_path / "calls"
    with sleeping(python, SORTS) as pid:
        words = ["strace", "-f", "-o", str(log), python, "-I", "-S", "-c", ways.READER, str(pid)]
        done = subprocess.run(words, capture_output=True, check=True)
    assert b"load_image" in done.stdout
    calls = log.read_text()
    assert f"process_vm_readv({pid}," in calls
    assert not re.search(r"process_vm_writev|ptrace\(|kill\(|/mem\"", calls)


def test_a_socket_that_nobody_serves_is_named_with_its_error(server: Server) -> None:
    folder = str(Path(server.path).parent)
    assert find_server(folder, 7) == server.path
    assert find_server(folder, 71) is find_server(folder + "/none", 7) is None
    server.close()
    with pytest.raises(WayRefusedError, match="Connection refused"):
        ask_server_for_any(server.path, ("old",), 5.0)
