"""Serves ``shim.sock``: one JSON line in, one out; the caller handles the request."""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Union

from distconsole_agent.contract.refusal import Refusal, bad_request
from distconsole_agent.contract.runspec import clamp_grace
from distconsole_agent.coordination import blame
from distconsole_agent.coordination.channel import LinkError, Wire
from distconsole_agent.system import unix
from distconsole_agent.system.door import Door

if TYPE_CHECKING:
    import socket

    from distconsole_agent.system.loop import Loop

MAX_REQUEST_BYTES = 64 * 1024
MAX_CLIENTS = 16


Answer = Union[dict[str, Any], Refusal]
Reply = Callable[[Answer], None]


class ShimSocket:
    """Listens at ``path`` for this user alone; ``answer`` returns an answer, or gives it to ``Reply`` later."""

    def __init__(
        self, loop: Loop, path: str, answer: Callable[[dict[str, Any], Reply], Answer | None]
    ) -> None:
        self._loop = loop
        self._path = path
        self._answer = answer
        self._clients: set[Wire] = set()
        listener = unix.listen(path, MAX_CLIENTS)
        listener.setblocking(False)
        self._door = Door(loop, listener, self._enter, always=True)

    def close(self) -> None:
        self._door.close()
        for wire in list(self._clients):
            self._drop(wire)
        with contextlib.suppress(OSError):
            os.unlink(self._path)

    def _enter(self, sock: socket.socket) -> None:
        if unix.peer_uid(sock) not in (os.getuid(), 0) or len(self._clients) >= MAX_CLIENTS:
            sock.close()
            return
        wire = Wire(self._loop, sock, lambda: self._read(wire))
        wire.max_line_bytes = MAX_REQUEST_BYTES
        self._clients.add(wire)

    def _read(self, wire: Wire) -> None:
        try:
            for line in wire.lines():
                self._handle(wire, line)
        except LinkError:
            self._drop(wire)

    def _handle(self, wire: Wire, line: bytes) -> None:
        reply = partial(self._send, wire)
        answer: Answer | None
        try:
            answer = self._answer(_decode(line), reply)
        except Refusal as refusal:
            answer = refusal
        if answer is not None:
            reply(answer)

    def _send(self, wire: Wire, answer: Answer) -> None:
        message = {"error": answer.as_json()} if isinstance(answer, Refusal) else answer
        if wire in self._clients:
            try:
                wire.write(json.dumps(message).encode("ascii"))
            except LinkError:
                self._drop(wire)

    def _drop(self, wire: Wire) -> None:
        self._clients.discard(wire)
        wire.close()


def _decode(line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        raise bad_request("a request is one JSON object on one line")
    return request


def read_endpoint(request: dict[str, Any]) -> tuple[str, int]:
    """Return the coordinator's address and port in a ``start`` request, or raise Refusal."""
    given = request.get("coordinator")
    if not isinstance(given, dict) or not isinstance(given.get("address"), str):
        raise bad_request("the start of this node needs the coordinator's address and port")
    return given["address"], _port(given.get("port"), "coordinator.port")


def read_master_port(request: dict[str, Any]) -> int | None:
    """Return the rendezvous port in a ``start`` request, if it has one, or raise Refusal."""
    value = request.get("master_port")
    return None if value is None else _port(value, "master_port")


def read_stop(request: dict[str, Any], grace_seconds: float) -> tuple[str, float]:
    """Return the reason and the grace of a ``stop`` request, in seconds, or raise Refusal."""
    reason = request.get("reason", blame.USER)
    if reason not in blame.STOP_EXIT_CODES:
        raise bad_request(f"a run is not stopped for {reason!r}", "user, sigint or sigterm")
    given = request.get("grace")
    try:
        return reason, grace_seconds if given is None else clamp_grace(given)
    except ValueError as error:
        raise bad_request(f"the grace is wrong: {error}") from None


def _port(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
        raise bad_request(f"{name} is not a port: {value!r}")
    return value
