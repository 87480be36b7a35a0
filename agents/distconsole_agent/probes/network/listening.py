"""Listeners for the console's own reach tests: bound to one address, behind a secret, for seconds.

One thread a group of listeners. It ends at its time to live even if the console is gone, and
closes connections that do not prove the secret without an answer.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from distconsole_agent.contract.protocol import ErrorCode
from distconsole_agent.probes.arguments import ProbeError, bounded, probe_failure
from distconsole_agent.probes.network import handshake
from distconsole_agent.system.door import listen_on
from distconsole_agent.system.kernel_files import text_of
from distconsole_agent.system.sha256 import equal_digests

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

MAX_GROUPS = 4
MAX_EPHEMERAL = 32
TRIES = 4
MAX_TTL_SECONDS = 300.0
MAX_CONNECTIONS = 4096
PROOF_SECONDS = 5.0
BACKLOG = 1024
CHUNK_BYTES = 256 * 1024
MAX_STREAM_SECONDS = 10.0


def listen(
    _seconds: float,
    *,
    address: str,
    secret: bytes,
    ports: Sequence[int] = (),
    ephemeral: int = 0,
    ttl_seconds: float = 10.0,
) -> dict[str, object]:
    """Open listeners and return ``{"token", "ports": [{"asked", "port", "error"}]}``.

    Args:
        ports: Fixed numbers.
        ephemeral: How many of the kernel's choice.
        ttl_seconds: They are closed after this.
    """
    asked = [int(bounded(port, 1, 65535)) for port in ports[:MAX_EPHEMERAL]]
    spread = _spread(address, int(bounded(ephemeral, 0, MAX_EPHEMERAL)))
    token = os.urandom(8).hex()
    opened = [(port, *_try_to_listen(address, port)) for port in asked]
    opened += [(0, listener, "") for listener in spread]
    report = [
        {"asked": port, "port": listener and listener.getsockname()[1], "error": error}
        for port, listener, error in opened
    ]
    listeners = [listener for _, listener, _ in opened if listener is not None]
    if not listeners:
        raise probe_failure(
            f"{address}: {report[0]['error'] if report else 'no port was asked for'}"
        )
    group = _Group(listeners, secret, bounded(ttl_seconds, 0.1, MAX_TTL_SECONDS))
    with _LOCK:
        if len(_OPEN) >= MAX_GROUPS:
            group.dispose()
            raise ProbeError(ErrorCode.TOO_MANY, "reach tests of other consoles are going on here")
        _OPEN[token] = group
    threading.Thread(target=_serve, args=(token, group), name="reach", daemon=True).start()
    return {"token": token, "ports": report}


def close(_seconds: float, *, token: str) -> dict[str, object]:
    """Close the listeners of ``token`` now; ``{"closed": false}`` if they were gone already."""
    with _LOCK:
        group = _OPEN.get(token)
    if group is None:
        return {"closed": False}
    group.stop()
    return {"closed": True}


def _spread(address: str, count: int) -> list[socket.socket]:
    """Listen on ``count`` ports spread evenly over the kernel's range, as those it chooses leave parts unseen."""
    low, high = 32768, 60999
    with contextlib.suppress(ValueError):
        low, high = map(int, text_of("/proc/sys/net/ipv4/ip_local_port_range").split())
    width = max(1, (high - low) // max(1, count))
    found = []
    for index in range(count):
        first = low + index * width
        tries = [first + int.from_bytes(os.urandom(4), "big") % width for _ in range(TRIES)]
        tried = (_try_to_listen(address, port)[0] for port in (*tries, 0))
        listener = next(filter(None, tried), None)
        if listener is not None:
            found.append(listener)
    return found


def _try_to_listen(address: str, port: int) -> tuple[socket.socket | None, str]:
    try:
        return listen_on(address, BACKLOG, port), ""
    except OSError as error:
        return None, error.strerror or str(error)


class _Guest:
    """One accepted connection; its talk takes incoming bytes until it ends; raises OSError."""

    def __init__(self, sock: socket.socket, peer: str, port: int, key: bytes, due: float) -> None:
        self.sock = sock
        self.due: float | None = due
        self.talk = self._talk(peer, port, key)
        next(self.talk)

    def _talk(self, peer: str, port: int, key: bytes) -> Generator[None, bytes, None]:
        greeting = handshake.HELLO + os.urandom(handshake.NONCE_BYTES)
        self.sock.send(greeting)
        claim = b""
        while len(claim) < handshake.CLAIM_BYTES:
            claim += yield
        nonce, given = claim[: handshake.NONCE_BYTES], claim[handshake.NONCE_BYTES :]
        expected = handshake.proof(key, b"connector", greeting, nonce, port)
        if not equal_digests(given, expected):
            return
        answer = handshake.proof(key, b"listener", greeting, nonce, port)
        seen = peer.encode("ascii", "replace")[: handshake.SEEN_BYTES]
        self.sock.send(answer + seen.ljust(handshake.SEEN_BYTES, b"\0"))
        self.due = None
        while True:
            data = yield
            if data[:1] == handshake.BULK:
                left = handshake.BULK_BYTES - len(data)
                while left > 0:
                    left -= len((yield))
                self.sock.send(handshake.BULK)
            elif data[:1] == handshake.STREAM and len(data) > handshake.STREAM_HEAD.size:
                yield from self._count_stream(*handshake.STREAM_HEAD.unpack_from(data, 1))
            else:
                self.sock.send(data)

    def _count_stream(self, seconds: float) -> Generator[None, bytes, None]:
        """Report once the bytes that came in its time; later ones are dropped."""
        began, took, count = time.monotonic(), 0.0, 0
        while took < min(seconds, MAX_STREAM_SECONDS):
            count += len((yield))
            took = time.monotonic() - began
        self.sock.send(handshake.COUNT.pack(count, took))
        while True:
            yield


class _Group:
    """The listeners of one request and their connections; all of it lives in one thread."""

    def __init__(self, listeners: list[socket.socket], key: bytes, ttl: float) -> None:
        self._listeners = listeners
        self._key = key
        self._ends = time.monotonic() + ttl
        self._wake_read, self._wake_write = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._guests = 0
        self._unproved: deque[_Guest] = deque()
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"x")

    def dispose(self) -> None:
        for key in list((self._selector.get_map() or {}).values()):
            if isinstance(key.data, _Guest):
                key.data.sock.close()
        self._selector.close()
        for listener in self._listeners:
            listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def serve(self) -> None:
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, listener)
        while not self._stopped:
            left = self._ends - time.monotonic()
            if left <= 0:
                return
            for key, _ in self._selector.select(min(left, 1.0)):
                if isinstance(key.data, _Guest):
                    self._advance(key.data)
                elif key.data is not None:
                    self._accept(key.data)
            now = time.monotonic()
            while self._unproved and (
                self._unproved[0].due is None or self._unproved[0].due < now
            ):
                guest = self._unproved.popleft()
                if guest.due is not None:
                    self._forget(guest)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, peer = listener.accept()
        except OSError:
            return
        if self._guests >= MAX_CONNECTIONS:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        due = time.monotonic() + PROOF_SECONDS
        port = int(listener.getsockname()[1])
        try:
            guest = _Guest(sock, str(peer[0]), port, self._key, due)
        except OSError:
            sock.close()
            return
        self._guests += 1
        self._unproved.append(guest)
        self._selector.register(sock, selectors.EVENT_READ, guest)

    def _advance(self, guest: _Guest) -> None:
        with contextlib.suppress(OSError, StopIteration):
            data = guest.sock.recv(CHUNK_BYTES)
            if data:
                guest.talk.send(data)
                return
        self._forget(guest)

    def _forget(self, guest: _Guest) -> None:
        self._guests -= 1
        self._selector.unregister(guest.sock)
        guest.sock.close()
        guest.due = None


_LOCK = threading.Lock()
_OPEN: dict[str, _Group] = {}


def _serve(token: str, group: _Group) -> None:
    try:
        group.serve()
    finally:
        with _LOCK:
            _OPEN.pop(token, None)
            group.dispose()
