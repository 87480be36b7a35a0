"""What happens to torch's worker server before Python ends."""

import os
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from distconsole_training.torch_hook import worker_server
from fakes.shims import wait_until


@pytest.fixture
def listener(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(tmp_path / "7-1.server"))
    made.listen()
    return made


def take_away(path: Path) -> threading.Thread:
    thread = threading.Thread(
        target=worker_server._take_away, args=(os.getpid(), str(path), str(path))
    )
    thread.start()
    return thread


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "already removed"])
@pytest.mark.parametrize("is_accepted", [True, False], ids=["accepted", "not yet accepted"])
def test_the_end_waits_for_what_was_asked_and_nothing_more_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    listener: socket.socket,
    is_accepted: bool,
    is_there: bool,
) -> None:
    monkeypatch.setattr(worker_server, "DRAIN_SECONDS", 600.0)
    path = tmp_path / "7-1.server"
    looks: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=looks.append)
    monkeypatch.setattr(worker_server, "time", clock)
    asks = socket.socket(socket.AF_UNIX)
    asks.connect(str(path))
    answers = listener.accept()[0] if is_accepted else None
    if not is_there:
        path.unlink()
    thread = take_away(path)
    try:
        wait_until("two looks", lambda: len(looks) > 1)
        assert (thread.is_alive(), path.exists()) == (True, False)
    finally:
        asks.close()
        if answers is None:
            answers = listener.accept()[0]
        answers.close()
        thread.join()
        listener.close()


def test_an_answer_that_does_not_come_delays_the_end_by_no_more_than_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, listener: socket.socket
) -> None:
    monkeypatch.setattr(worker_server, "DRAIN_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as asks, listener:
        asks.connect(str(tmp_path / "7-1.server"))
        thread = take_away(tmp_path / "7-1.server")
        thread.join(30)
        assert not thread.is_alive()


def test_a_fork_leaves_its_parents_socket(tmp_path: Path, listener: socket.socket) -> None:
    path = tmp_path / "7-1.server"
    worker_server._take_away(os.getpid() + 1, str(path), str(path))
    assert path.exists()
    listener.close()
