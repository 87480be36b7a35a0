"""Connects to the listeners of other nodes, all at once, and times them. It judges nothing."""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections import deque
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes import handshake
from distconsole_agent.probes.errors import bad_arguments

MAX_TARGETS = 20_000
MAX_AT_ONCE = 400
"""Below the usual limit of 1,024 descriptors, with room for the rest of the agent."""
MAX_PINGS = 50

_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route",
    errno.ETIMEDOUT: "timeout",
    errno.EADDRNOTAVAIL: "no_source",
}


def connect(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Try every target in one batch and return ``{"results": [...]}`` in the order given.

    A result is ``{"id", "ok", "error", "connect_us", "rtt_us", "source", "seen_source", "bulk"}``:
    ``error`` is one of refused, reset, no_route, timeout, no_source, closed, wrong_answer or the
    system's word; ``rtt_us`` the least of the pings; ``seen_source`` our address as the peer saw
    it, which differs from ``source`` behind NAT; ``bulk`` whether 32 KiB came through as small
    messages did, null where it was not tried.

    Args:
        args: ``targets``: ``[{"id", "address", "port", "bulk"}]``; ``secret``; ``timeout_seconds`` for each;
            ``pings``: how many round trips to time on each, one after the other.
        seconds: What is not decided by then counts as ``timeout``.
    """
    key = read.secret(args)
    timeout = read.number(args, "timeout_seconds", 3.0, 0.05, 60.0)
    pings = read.whole(args, "pings", 0, 0, MAX_PINGS)
    targets = read.items(args, "targets")
    if len(targets) > MAX_TARGETS:
        raise bad_arguments(f"more than {MAX_TARGETS} targets")
    attempts = [_Attempt(index, target, key, pings) for index, target in enumerate(targets)]
    _run(attempts, timeout, time.monotonic() + seconds * 0.9)
    return {"results": [attempt.report() for attempt in attempts]}


class _Attempt:
    """One connection from its SYN to its last ping."""

    def __init__(self, index: int, target: Any, key: bytes, pings: int) -> None:
        if not isinstance(target, dict):
            raise bad_arguments("a target is not an object")
        self.id = read.text(target, "id", str(index))
        self.address = read.text(target, "address")
        self.port = read.whole(target, "port", 0, 1, 65535)
        self._key = key
        self._pings_left = pings
        self._bulk_wanted = target.get("bulk") is True
        self._bulk: bool | None = None
        self.sock: socket.socket | None = None
        self.due = 0.0
        self.error: str | None = None
        self._began = self._sent_at = 0.0
        self._connect_us: float | None = None
        self._rtt_us: float | None = None
        self._source = self._seen_source = ""
        self._received = b""
        self._step = self._on_connected
        self._nonce = b""
        self._greeting = b""

    @property
    def decided(self) -> bool:
        """Whether there is nothing more to do."""
        return self.error is not None

    def start(self, timeout: float) -> None:
        """Send the SYN."""
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.due = time.monotonic() + timeout
        try:
            self.sock = socket.socket(family, socket.SOCK_STREAM)
            self.sock.setblocking(False)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._bulk_wanted:
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * handshake.BULK_BYTES)
            self._began = time.perf_counter()
            code = self.sock.connect_ex((self.address, self.port))
        except OSError as error:
            self.end(_word(error.errno, error.strerror))
            return
        if code not in (0, errno.EINPROGRESS):
            self.end(_word(code, os.strerror(code)))

    def advance(self) -> None:
        """Go on after the socket became ready."""
        try:
            self._step()
        except OSError as error:
            self.end(_word(error.errno, error.strerror))

    def end(self, error: str) -> None:
        """Decide; an empty word is success. Once only the bulk is out, the rest stands."""
        self.error = "" if self._step == self._on_bulk else error

    def close(self) -> None:
        """Give the socket back."""
        if self.sock is not None:
            self.sock.close()
            self.sock = None

    def report(self) -> dict[str, Any]:
        """Return the result."""
        return {
            "id": self.id,
            "ok": self.error == "",
            "error": self.error or "",
            "connect_us": self._connect_us,
            "rtt_us": self._rtt_us,
            "source": self._source,
            "seen_source": self._seen_source,
            "bulk": self._bulk,
        }

    def _on_connected(self) -> None:
        assert self.sock is not None
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.end(_word(code, os.strerror(code)))
            return
        self._connect_us = round((time.perf_counter() - self._began) * 1e6, 1)
        self._source = str(self.sock.getsockname()[0])
        self._step = self._on_greeting

    def _on_greeting(self) -> None:
        if not self._receive(handshake.GREETING_BYTES):
            return
        self._greeting, self._received = self._received, b""
        if not self._greeting.startswith(handshake.HELLO):
            self.end("wrong_answer")
            return
        self._nonce = os.urandom(handshake.NONCE_BYTES)
        claim = handshake.proof(self._key, b"connector", self._greeting, self._nonce, self.port)
        self._send(self._nonce + claim)
        self._step = self._on_answer

    def _on_answer(self) -> None:
        if not self._receive(handshake.ANSWER_BYTES):
            return
        given, seen = (
            self._received[: handshake.PROOF_BYTES],
            self._received[handshake.PROOF_BYTES :],
        )
        expected = handshake.proof(self._key, b"listener", self._greeting, self._nonce, self.port)
        if not handshake.matches(given, expected):
            self.end("wrong_answer")
            return
        self._seen_source = handshake.unpack_seen(seen)
        self._received = b""
        self._step = self._on_echo
        self._ping()

    def _on_echo(self) -> None:
        if not self._receive(1):
            return
        took_us = round((time.perf_counter() - self._sent_at) * 1e6, 1)
        self._rtt_us = took_us if self._rtt_us is None else min(self._rtt_us, took_us)
        self._received = b""
        self._ping()

    def _ping(self) -> None:
        if self._pings_left == 0:
            self._after_pings()
            return
        self._pings_left -= 1
        self._sent_at = time.perf_counter()
        self._send(handshake.PING)

    def _after_pings(self) -> None:
        if not self._bulk_wanted:
            self.end("")
            return
        self._bulk = False
        self._step = self._on_bulk
        self._send(handshake.BULK * handshake.BULK_BYTES)

    def _on_bulk(self) -> None:
        if self._receive(1):
            self._bulk = True
            self.end("")

    def _send(self, data: bytes) -> None:
        assert self.sock is not None
        self.sock.send(data)

    def _receive(self, wanted: int) -> bool:
        """Collect ``wanted`` bytes; True once they are there."""
        assert self.sock is not None
        try:
            data = self.sock.recv(wanted - len(self._received))
        except BlockingIOError:
            return False
        if not data:
            self.end("closed")
            return False
        self._received += data
        return len(self._received) >= wanted

    @property
    def interest(self) -> int:
        """What to wait for: a connection is there once it can be written to."""
        waiting = self._connect_us is None
        return selectors.EVENT_WRITE if waiting else selectors.EVENT_READ


def _run(attempts: list[_Attempt], timeout: float, ends: float) -> None:
    waiting = deque(attempts)
    active: set[_Attempt] = set()
    with selectors.DefaultSelector() as selector:
        while (waiting or active) and time.monotonic() < ends:
            while waiting and len(active) < MAX_AT_ONCE:
                attempt = waiting.popleft()
                attempt.start(timeout)
                if attempt.decided or attempt.sock is None:
                    attempt.close()
                else:
                    active.add(attempt)
                    selector.register(attempt.sock, attempt.interest, attempt)
            _turn(selector, active, min(ends, min((a.due for a in active), default=ends)))
    for attempt in attempts:
        attempt.close()
        if not attempt.decided:
            attempt.end("timeout")


def _turn(selector: selectors.BaseSelector, active: set[_Attempt], until: float) -> None:
    for key, _ in selector.select(max(0.0, until - time.monotonic())):
        attempt: _Attempt = key.data
        before = attempt.interest
        attempt.advance()
        if attempt.decided:
            _drop(selector, active, attempt)
        elif attempt.interest != before:
            selector.modify(key.fileobj, attempt.interest, attempt)
    now = time.monotonic()
    for attempt in [attempt for attempt in active if attempt.due <= now]:
        attempt.end("timeout")
        _drop(selector, active, attempt)


def _drop(selector: selectors.BaseSelector, active: set[_Attempt], attempt: _Attempt) -> None:
    assert attempt.sock is not None
    selector.unregister(attempt.sock)
    active.discard(attempt)
    attempt.close()


def _word(code: int | None, text: str | None) -> str:
    return _WORDS.get(code or 0, text or f"errno {code}")
