"""Connects to the listeners of other nodes, all at once, and times them."""

from __future__ import annotations

import errno
import heapq
import math
import os
import selectors
import socket
import struct
import time
from collections import deque
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import bad_arguments
from distconsole_agent.probes.network import handshake

MAX_TARGETS = 20_000
MAX_AT_ONCE = 400
"""Below the usual limit of 1,024 descriptors, with room for the rest of the agent."""
MAX_PINGS = 50
SLOW_BULK = 50.0
"""Round trips of a small message that 32 KiB may take before they count as lost."""

_MIN_RTT_OFFSET = 148
"""tcpi_min_rtt in struct tcp_info (linux/tcp.h, from Linux 4.6 on)."""
_NO_RTT = 0xFFFFFFFF

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

    A result is ``{"id", "ok", "error", "errno", "connect_us", "rtt_us", "source", "seen_source", "bulk"}``:
    ``error`` is one of refused, reset, no_route, timeout, silent, no_source, closed, wrong_answer or
    the system's word: ``timeout`` where no connection came about, ``silent`` where one did and the
    listener then said nothing, as a busy host's may; ``errno`` the name of the system's code
    (``EHOSTUNREACH``), empty where it gave none; ``rtt_us`` the least of the pings;
    ``seen_source`` our address as the peer saw it, which differs from ``source`` behind NAT; ``bulk``
    whether 32 KiB came through as small messages did, null where it was not tried.

    Args:
        args: ``targets``: ``[{"id", "address", "port", "bulk", "pings"}]``, where ``pings`` is how
            many round trips to time on it, if not the ``pings`` of all; ``secret``; ``timeout_seconds`` for each
            connection to come about. One that did has until the end to be answered.
        seconds: What is not decided by then counts as ``timeout`` or ``silent``.
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
        self._pings_left = read.whole(target, "pings", pings, 0, MAX_PINGS)
        self._bulk_wanted = target.get("bulk") is True
        self._bulk: bool | None = None
        self.sock: socket.socket | None = None
        self.due = self._bulk_due = self._timeout = 0.0
        self.error: str | None = None
        self._errno = ""
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
        self._timeout = timeout
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
            self._fail(error.errno, error.strerror)
            return
        if code not in (0, errno.EINPROGRESS):
            self._fail(code, os.strerror(code))

    def advance(self) -> None:
        """Go on after the socket became ready."""
        try:
            self._step()
        except OSError as error:
            self._fail(error.errno, error.strerror)

    def end(self, error: str) -> None:
        """Decide; an empty word is success. Once only the bulk is out, the rest stands."""
        self.error = "" if self._step == self._on_bulk else error

    def _fail(self, code: int | None, text: str | None) -> None:
        """Decide by the system's error."""
        self._errno = errno.errorcode.get(code or 0, "")
        self.end(_WORDS.get(code or 0, text or f"errno {code}"))

    def give_up(self) -> None:
        """Decide, because the time is over."""
        self.end("timeout" if self._connect_us is None else "silent")

    def late(self, now: float) -> None:
        """Go on or give up at the time at which it was due.

        Who was answered by a host's kernel waits on for its listener: that one may be busy. A
        connection that came about while this process was busy itself counts as one.
        """
        if self._connect_us is None and self._is_connected():
            self.advance()
        if self._connect_us is None:
            self.give_up()
        elif self._step != self._on_bulk:
            self.due = math.inf
        elif now < self._bulk_due:
            self.due = self._bulk_due
        else:
            self.give_up()

    def _is_connected(self) -> bool:
        assert self.sock is not None
        try:
            self.sock.getpeername()
        except OSError:
            return False
        return True

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
            "errno": self._errno if self.error else "",
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
            self._fail(code, os.strerror(code))
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
        if self._pings_left == 0:
            self._rtt_us = min(self._rtt_us, _kernels_rtt_us(self.sock) or self._rtt_us)
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
        patience = max(self._timeout, SLOW_BULK * (self._rtt_us or 0.0) / 1e6)
        self._bulk_due = time.monotonic() + patience
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


class _Due:
    """Attempts by the time at which they are looked after, whatever their sockets do."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Attempt]] = []
        self._count = 0

    def add(self, attempt: _Attempt) -> None:
        if attempt.due < math.inf:
            self._count += 1
            heapq.heappush(self._heap, (attempt.due, self._count, attempt))

    def next(self) -> float:
        """Return when the next one is due that is not decided; infinity without one."""
        while self._heap and self._heap[0][2].decided:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else math.inf

    def pop(self, now: float) -> _Attempt | None:
        """Take one that is due at ``now``."""
        return heapq.heappop(self._heap)[2] if self.next() <= now else None


def _run(attempts: list[_Attempt], timeout: float, ends: float) -> None:
    waiting = deque(attempts)
    active, due = 0, _Due()
    with selectors.DefaultSelector() as selector:
        while (waiting or active) and time.monotonic() < ends:
            while waiting and active < MAX_AT_ONCE:
                attempt = waiting.popleft()
                attempt.start(timeout)
                if attempt.decided or attempt.sock is None:
                    attempt.close()
                else:
                    active += 1
                    selector.register(attempt.sock, attempt.interest, attempt)
                    due.add(attempt)
            if active:
                active -= _turn(selector, due, min(ends, due.next()))
    for attempt in attempts:
        attempt.close()
        if not attempt.decided:
            attempt.give_up()


def _turn(selector: selectors.BaseSelector, due: _Due, until: float) -> int:
    """Go on where something happened or is due; return how many attempts were decided."""
    decided = 0
    for key, _ in selector.select(max(0.0, until - time.monotonic())):
        attempt: _Attempt = key.data
        before = attempt.interest
        attempt.advance()
        decided += _drop_decided(selector, attempt)
        if not attempt.decided and attempt.interest != before:
            selector.modify(key.fileobj, attempt.interest, attempt)
    now = time.monotonic()
    while (late := due.pop(now)) is not None:
        before = late.interest
        late.late(now)
        decided += _drop_decided(selector, late)
        if not late.decided:
            due.add(late)
            if late.interest != before and late.sock is not None:
                selector.modify(late.sock, late.interest, late)
    return decided


def _drop_decided(selector: selectors.BaseSelector, attempt: _Attempt) -> bool:
    """Close a decided attempt; tell whether it was one."""
    if attempt.decided and attempt.sock is not None:
        selector.unregister(attempt.sock)
        attempt.close()
        return True
    return False


def _kernels_rtt_us(sock: socket.socket | None) -> float | None:
    """Return the least round trip that the kernel saw, in which no process has to wait its turn."""
    try:
        info = b"" if sock is None else sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    except (OSError, AttributeError):
        return None
    if len(info) < _MIN_RTT_OFFSET + 4:
        return None
    least: int = struct.unpack_from("<I", info, _MIN_RTT_OFFSET)[0]
    return float(least) if 0 < least < _NO_RTT else None
