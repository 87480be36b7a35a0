"""Serves ``shim.sock``: one JSON line in, one out; the caller handles the request."""

from __future__ import annotations

import contextlib
import json
import os
from functools import partial
from typing import TYPE_CHECKING, Callable, Union

from distconsole_agent.contract.protocol import Values
from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.contract.requests import ShimRequest, read_request
from distconsole_agent.coordination.channel import LinkError, Wire
from distconsole_agent.system import unix
from distconsole_agent.system.door import Door

if TYPE_CHECKING:
    import socket

    from distconsole_agent.system.loop import Loop

MAX_REQUEST_BYTES = 64 * 1024
MAX_CLIENTS = 16

Answer = Union[Values, Refusal]
Reply = Callable[[Answer], None]


class ShimSocket:
    """Listens at ``path`` for this user alone; ``answer`` returns an answer, or gives it to ``Reply`` later."""

    def __init__(
        self, loop: Loop, path: str, answer: Callable[[ShimRequest, Reply], Answer | None]
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

        def read() -> None:
            try:
                for line in wire.lines():
                    self._handle(wire, line)
            except LinkError:
                self._drop(wire)

        wire = Wire(self._loop, sock, read)
        wire.max_line_bytes = MAX_REQUEST_BYTES
        self._clients.add(wire)

    def _handle(self, wire: Wire, line: bytes) -> None:
        reply = partial(self._send, wire)
        answer: Answer | None
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            request = None
        try:
            answer = self._answer(read_request(ShimRequest, request), reply)
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
