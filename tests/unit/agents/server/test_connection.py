"""One bridge's connection, over a real socket; what answers is faked."""

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from distconsole_agent.server import connection
from distconsole_agent.server.connection import ConsoleConnection

Talk = tuple[ConsoleConnection, socket.socket]


def echo(request: dict[str, Any], _asker: object) -> dict[str, Any]:
    """Answer everything with what was asked."""
    return {"asked": request.op}


@pytest.fixture
def talk() -> Iterator[Talk]:
    ours, theirs = socket.socketpair()
    over = threading.Event()
    talking = ConsoleConnection(theirs, echo, threading.BoundedSemaphore(1), lambda _: over.set())
    talking.begin()
    yield talking, ours
    ours.close()
    assert over.wait(20)
    theirs.close()


def ask(ours: socket.socket, number: int) -> dict[str, Any]:
    ours.sendall(json.dumps({"id": number, "op": "one"}).encode() + b"\n")
    ours.settimeout(20)
    with ours.makefile("rb") as lines:
        said: dict[str, Any] = json.loads(lines.readline())
    return said


def test_a_node_without_more_threads_goes_on(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = talk

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(connection, "begin_thread", refuse)
        for number in (1, 2):  # what was counted in is counted out again
            error = ask(ours, number)["error"]
            assert (error["code"], "no more threads" in error["message"]) == ("too_many", True)
    assert ask(ours, 3) == {"id": 3, "result": {"asked": "one"}}
