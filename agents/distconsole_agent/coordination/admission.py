"""The coordinator's door: a TCP listener that hands over who proves to be a node of the run."""

from __future__ import annotations

import socket
from functools import partial
from typing import Callable

from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.coordination.channel import (
    LinkError,
    LinkTimes,
    Proof,
    Wire,
    admit,
    check_introduction,
    fresh_nonce,
    greet,
)
from distconsole_agent.system import tcp
from distconsole_agent.system.door import Door
from distconsole_agent.system.loop import Loop, Timer

BACKLOG = 128
MAX_STRANGERS = 64
"""Connections that have not proved themselves yet; a further one replaces the oldest."""


class Admission:
    """Listens on the address of the run's first node, on a free port, until it is closed.

    Args:
        expects: Whether a node of this number may connect.
        admitted: Gets a connection that proved itself, and the lines that it has sent already.

    Raises OSError when the address is not this host's.
    """

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        times: LinkTimes,
        expects: Callable[[int], bool],
        admitted: Callable[[Wire, Proof, list[bytes]], None],
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._times = times
        self._expects = expects
        self._admitted = admitted
        self._strangers: dict[Wire, Timer] = {}
        self._listener = tcp.listen(spec.nodes[0].address, BACKLOG)
        self._door = Door(loop, self._listener, self._enter)

    @property
    def endpoint(self) -> tuple[str, int]:
        """Address and port that the other nodes connect to."""
        address, port = self._listener.getsockname()[:2]
        return str(address), int(port)

    def close(self) -> None:
        self._door.close()
        for wire in list(self._strangers):
            self._dismiss(wire)

    def _enter(self, sock: socket.socket) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            self._dismiss(next(iter(self._strangers)))
        nonce = fresh_nonce()
        wire = Wire(self._loop, sock, lambda: self._meet(wire, nonce))
        self._strangers[wire] = self._loop.call_later(
            self._times.handshake, partial(self._dismiss, wire)
        )
        try:
            wire.write(greet(nonce))
        except LinkError:
            self._dismiss(wire)

    def _dismiss(self, wire: Wire) -> None:
        timer = self._strangers.pop(wire, None)
        if timer is not None:
            timer.cancel()
        wire.close()

    def _meet(self, wire: Wire, nonce: str) -> None:
        try:
            lines = wire.lines()
            if not lines:
                return
            proof = self._proof(lines[0], nonce)
            wire.write(admit(proof))
        except LinkError:
            self._dismiss(wire)
            return
        self._strangers.pop(wire).cancel()
        self._admitted(wire, proof, lines[1:])

    def _proof(self, line: bytes, nonce: str) -> Proof:
        proof = check_introduction(line, self._spec.secret, self._spec.run, nonce)
        if not self._expects(proof.node):
            raise LinkError("not a node that is waited for")
        return proof
