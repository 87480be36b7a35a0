"""How a worker server is asked that is not as it should be; real ones answer in tests/hook."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.roll_call.ways import (
    RefusedError,
    ask_server_for_any,
    find_server,
    stacks_by_server,
    stacks_by_signal,
)
from distconsole_agent.system import unix

STACK = b'Thread 0x1 (most recent call first):\n  File "a.py", line 3 in f\n'


class Server:
    """Answers each request by its handler's words in ``answers``; to one without any it says nothing."""

    def __init__(self, path: str, answers: dict[str, bytes]) -> None:
        self.path = path
        self.asked: list[str] = []
        self._answers = answers
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

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            handler = sock.recv(4096).split(b" ")[1].decode().removeprefix("/handler/")
            self.asked.append(handler)
            if handler in self._answers:
                sock.sendall(b"HTTP/1.1 " + self._answers[handler])
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
    with pytest.raises(RefusedError, match="failed: no"):
        ask_server_for_any(server.path, ("new", "broken", "old"), 5.0)
    with pytest.raises(RefusedError, match="has no new"):
        ask_server_for_any(server.path, ("new", "new"), 5.0)


def test_who_holds_pythons_lock_is_asked_for_its_stacks_once(server: Server) -> None:
    for _ in range(2):
        with pytest.raises(RefusedError, match="holds Python's lock"):
            stacks_by_server(server.path, "R", 0.05)
    assert server.asked == ["dump_traceback"]


@pytest.mark.parametrize(("state", "why"), [("T", "stopped"), ("t", "a debugger")])
def test_a_process_that_does_not_run_is_not_asked(server: Server, state: str, why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        stacks_by_server(server.path, state, 5.0)
    with pytest.raises(RefusedError, match=why):
        stacks_by_signal(1, {}, state, 5.0)
    assert server.asked == []


def test_a_process_under_a_debugger_is_sent_no_signal() -> None:
    with pytest.raises(RefusedError, match=r"a debugger \(pid 9\)"):
        stacks_by_signal(1, {"TracerPid": "9"}, "S", 5.0)


def test_a_socket_that_nobody_serves_is_named_with_its_error(server: Server) -> None:
    folder = str(Path(server.path).parent)
    assert find_server(folder, 7) == server.path
    assert find_server(folder, 71) is find_server(folder + "/none", 7) is None
    server.close()
    with pytest.raises(RefusedError, match="Connection refused"):
        ask_server_for_any(server.path, ("old",), 5.0)
