"""The connection between two shims of one run: frames, and proof of the run's secret.

Both sides prove that they know the secret by an HMAC-SHA256 over both sides' fresh nonces, and every frame
afterwards carries an HMAC over its number and its text under a key of that connection and direction: a
stranger on the network can cut a connection, not speak in it. Texts are in clear: they hold how each
rank ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from functools import partial
from typing import Callable, NamedTuple

from distconsole_agent.contract.runspec import RunSpec
from distconsole_agent.system.door import Door, listen_on
from distconsole_agent.system.loop import READ, WRITE, Loop, Timer
from distconsole_agent.system.sha256 import equal_digests, hmac_sha256

MAX_FRAME_BYTES = 128 * 1024
"""The longest failure has 110 kB: JSON has 12 bytes of a character beyond 16 bits."""

MAX_HELLO_BYTES = 1024
MAX_UNSENT_BYTES = 4 * 1024 * 1024
MAC_HEX = 64
NONCE_BYTES = 32
GREETING = "distconsole-coordinator 1"

Message = dict[str, object]
"""A message between two shims: ``op``, and fields that are checked where they are read."""

BACKLOG = 128
MAX_STRANGERS = 64
"""Connections that have not proved themselves yet; a further one replaces the oldest."""


class LinkTimes(NamedTuple):
    """Every pace and patience of the links between shims, in seconds.

    Attributes:
        heartbeat: Between two signs of life.
        silent: A link without one for this long is cut, and the node beyond it goes on unsupervised.
        give_up: A node without a sign of life for this long is lost, and the run has failed.
        refused: A coordinator whose host refuses its port for this long, once linked, is gone.
        handshake: For a connection to prove that it is of the run.
        connect: For one try to connect.
        retry: Between two tries.
        clock: Between two measurements of a clock's offset.
        farewell: For the verdict to be acknowledged.
        settle: For all nodes to end after the grace, before the verdict is made without them.
    """

    heartbeat: float = 1.0
    silent: float = 10.0
    give_up: float = 120.0
    refused: float = 1.0
    handshake: float = 3.0
    connect: float = 3.0
    retry: float = 0.5
    clock: float = 30.0
    farewell: float = 5.0
    settle: float = 10.0


def times_for(lost_after_seconds: float) -> LinkTimes:
    """Return the times for a run with this limit for lost nodes."""
    usual = LinkTimes()
    return usual._replace(
        give_up=lost_after_seconds, silent=min(usual.silent, lost_after_seconds / 2)
    )


class LinkError(Exception):
    """The other side is gone, is not of the run, or does not keep to the protocol."""


class Wire:
    """Lines over one non-blocking socket, bounded both ways."""

    def __init__(self, loop: Loop, sock: socket.socket, on_ready: Callable[[], None]) -> None:
        self._loop = loop
        self._sock = sock
        self._on_ready = on_ready
        self._unread = bytearray()
        self._unsent = bytearray()
        self.max_line_bytes = MAX_HELLO_BYTES
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop.watch(sock.fileno(), READ, self._ready)

    @property
    def peer_address(self) -> str:
        """The address of the other side; empty if it has gone."""
        try:
            return str(self._sock.getpeername()[0])
        except OSError:
            return ""

    def hand_to(self, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready

    def lines(self) -> list[bytes]:
        """Return the lines that have come. Raises LinkError at the end or on a line too long."""
        try:
            chunk = self._sock.recv(MAX_FRAME_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise LinkError(str(error)) from error
        if not chunk:
            raise LinkError("the connection was closed")
        self._unread += chunk
        *lines, rest = bytes(self._unread).split(b"\n")
        self._unread[:] = rest
        if any(len(line) > self.max_line_bytes for line in (*lines, rest)):
            raise LinkError("a line that is too long")
        return lines

    def write(self, line: bytes) -> None:
        """Send a line. Raises LinkError when the other side does not read, or is gone."""
        self._unsent += line + b"\n"
        if len(self._unsent) > MAX_UNSENT_BYTES:
            raise LinkError("the other side does not read")
        self._flush()

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def _ready(self, events: int) -> None:
        if events & WRITE:
            with contextlib.suppress(LinkError):  # a read raises the same, with its reason
                self._flush()
        if events & READ:
            self._on_ready()

    def _flush(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._unsent.clear()
            raise LinkError(str(error)) from None
        if self._sock.fileno() >= 0:
            self._loop.watch(
                self._sock.fileno(), READ | WRITE if self._unsent else READ, self._ready
            )


class LinkSession:
    """Sealed frames over a wire that has proved itself: each is ``HMAC SPACE JSON``."""

    def __init__(self, wire: Wire, send_key: bytes, receive_key: bytes) -> None:
        self.wire = wire
        wire.max_line_bytes = MAX_FRAME_BYTES
        self._send_key, self._receive_key = send_key, receive_key
        self._sent = self._received = 0

    def send(self, message: Message) -> None:
        """Send one message. Raises LinkError as ``Wire.write``, and when it is too long."""
        line = seal(self._send_key, self._sent + 1, message)
        self._sent += 1
        self.wire.write(line)

    def open(self, line: bytes) -> Message:
        """Return the message in a line, or raise LinkError unless it is the next one sealed."""
        self._received += 1
        mac, _, text = line.partition(b" ")
        if not equal_digests(mac, _mac(self._receive_key, self._received, text)):
            raise LinkError("a frame that the other side did not seal")
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            raise LinkError("a frame that is not an object")
        return message

    def close(self) -> None:
        self.wire.close()


def seal(key: bytes, number: int, message: Message) -> bytes:
    """Return the line of one side's ``number``-th message, from 1, or raise LinkError."""
    text = json.dumps(message, separators=(",", ":")).encode("ascii")
    if len(text) + MAC_HEX + 1 > MAX_FRAME_BYTES:
        raise LinkError(f"a message of {len(text)} bytes is too long")
    return _mac(key, number, text) + b" " + text


def fresh_nonce() -> str:
    return os.urandom(NONCE_BYTES).hex()


def greet(nonce: str) -> bytes:
    return json.dumps({"hello": GREETING, "nonce": nonce}).encode("ascii")


def read_greeting(line: bytes) -> str:
    """Return the coordinator's nonce, or raise LinkError."""
    fields = _fields(line)
    if fields.get("hello") != GREETING:
        raise LinkError("not a coordinator of this version")
    return _nonce(fields.get("nonce"))


class SecretProof(NamedTuple):
    """The shared values once a shim has introduced itself; keys and proofs come from them."""

    secret: bytes
    run: str
    node: int
    server_nonce: str
    client_nonce: str

    def of(self, side: str) -> str:
        """Return the proof that ``side`` ("client" or "server") knows the secret."""
        return self._derived(f"{side} proof").hex()

    def key(self, side: str) -> bytes:
        return self._derived(f"{side} key")

    def _derived(self, purpose: str) -> bytes:
        parts = (purpose, self.run, str(self.node), self.server_nonce, self.client_nonce)
        return hmac_sha256(self.secret, json.dumps(parts).encode("ascii"))


def introduce(proof: SecretProof) -> bytes:
    fields = {
        "run": proof.run,
        "node": proof.node,
        "nonce": proof.client_nonce,
        "proof": proof.of("client"),
    }
    return json.dumps(fields).encode("ascii")


def check_introduction(line: bytes, secret: bytes, run: str, server_nonce: str) -> SecretProof:
    """Return the proof of the introduced shim. Raises LinkError when it does not know the secret."""
    fields = _fields(line)
    node = fields.get("node")
    if isinstance(node, bool) or not isinstance(node, int):
        raise LinkError("an introduction without a node")
    proof = SecretProof(secret, run, node, server_nonce, _nonce(fields.get("nonce")))
    _check_proof(fields, proof, "client", "a stranger")
    return proof


def check_admission(line: bytes, proof: SecretProof) -> None:
    """Raise LinkError when a coordinator does not know the secret."""
    _check_proof(_fields(line), proof, "server", "a coordinator that does not know the secret")


class Admission:
    """The coordinator's door: listens on the first node's address and hands over proven shims of the run.

    Args:
        expects: Returns True if a node of this number may connect.
        admitted: Gets a connection that proved itself, and the lines that it has sent already.

    Raises OSError when the address is not this host's.
    """

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        times: LinkTimes,
        expects: Callable[[int], bool],
        admitted: Callable[[Wire, SecretProof, list[bytes]], None],
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._times = times
        self._expects = expects
        self._admitted = admitted
        self._strangers: dict[Wire, Timer] = {}
        self._listener = listen_on(spec.nodes[0].address, BACKLOG)
        self._door = Door(loop, self._listener, self._enter)

    @property
    def endpoint(self) -> tuple[str, int]:
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
            proof = check_introduction(lines[0], self._spec.secret, self._spec.run, nonce)
            if not self._expects(proof.node):
                self._dismiss(wire)
                return
            wire.write(json.dumps({"proof": proof.of("server")}).encode("ascii"))
        except LinkError:
            self._dismiss(wire)
            return
        self._strangers.pop(wire).cancel()
        self._admitted(wire, proof, lines[1:])


def _check_proof(fields: Message, proof: SecretProof, side: str, why: str) -> None:
    given = str(fields.get("proof")).encode("utf-8", "replace")
    if not equal_digests(given, proof.of(side).encode("ascii")):
        raise LinkError(why)


def _fields(line: bytes) -> Message:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise LinkError("not a handshake")
    return fields


def _nonce(value: object) -> str:
    if not isinstance(value, str) or len(value) != 2 * NONCE_BYTES or not value.isascii():
        raise LinkError("a handshake without a nonce")
    return value


def _mac(key: bytes, number: int, text: bytes) -> bytes:
    return hmac_sha256(key, number.to_bytes(8, "big") + text).hex().encode("ascii")
