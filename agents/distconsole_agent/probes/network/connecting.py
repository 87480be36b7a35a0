"""Connects to the listeners of other nodes: all at once to time them, or to one for its bandwidth."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.arguments import Arguments, bounded, probe_failure
from distconsole_agent.probes.at_once import look_at_once
from distconsole_agent.probes.network import handshake
from distconsole_agent.system.sha256 import equal_digests

MAX_AT_ONCE = 200
"""Threads, each with a connection; below the usual limit of 1,024 descriptors."""

MAX_PINGS = 50
SLOW_BULK = 50.0
"""Round trips of a small message that 32 KiB may take before they count as lost."""

MAX_STREAM_SECONDS = 5.0
CHUNK_BYTES = 256 * 1024
_RETRANSMITS_OFFSET, _MIN_RTT_OFFSET = 100, 148
"""tcpi_total_retrans and tcpi_min_rtt in struct tcp_info (linux/tcp.h, the latter from Linux 4.6 on)."""

_TCP_INFO_BYTES = 192
_NO_RTT = 0xFFFFFFFF

_WORDS = {
    errno.ECONNREFUSED: "refused",
    errno.ECONNRESET: "reset",
    errno.EHOSTUNREACH: "no_route",
    errno.ENETUNREACH: "no_route",
    errno.ETIMEDOUT: "timeout",
    errno.EADDRNOTAVAIL: "no_source",
}


class ConversationError(Exception):
    """The other side is no listener of this check; the text is ``closed`` or ``wrong_answer``."""


class ConnectTarget(NamedTuple):
    id: str
    address: str
    port: int
    pings: int
    bulk: bool


def connect(
    seconds: float,
    *,
    secret: bytes,
    targets: Sequence[Arguments] = (),
    timeout_seconds: float = 3.0,
    pings: int = 0,
) -> dict[str, object]:
    """Try every target in one batch and return ``{"results": [...]}`` in the order given.

    A result is ``{"id", "ok", "error", "errno", "rtt_us", "source", "seen_source", "bulk"}``:
    ``error`` is one of refused, reset, no_route, timeout, silent (connected, but the listener sent
    nothing), no_source, closed, wrong_answer or the system's word; ``errno`` is as
    ``EHOSTUNREACH``; ``rtt_us`` is the least of the pings; ``seen_source`` is our address as the
    peer saw it; ``bulk``: 32 KiB came through like small messages; null if not
    tried.

    Args:
        targets: ``[{"id", "address", "port", "bulk", "pings"}]``; its ``pings``, the number of
            round trips to time, goes before the ``pings`` of all.
        timeout_seconds: For each connection to come about. One that did has until the end to be
            answered.
    """
    timeout = bounded(timeout_seconds, 0.05, 60.0)
    wanted = [
        ConnectTarget(
            read.text({"id": str(index), **item}, "id"),
            read.text(item, "address"),
            read.whole(item, "port", 0, 1, 65535),
            read.whole(item, "pings", pings, 0, MAX_PINGS),
            item.get("bulk") is True,
        )
        for index, item in enumerate(targets)
    ]
    ends = time.monotonic() + seconds * 0.9
    results = look_at_once(lambda each: _try(each, secret, timeout, ends), wanted, MAX_AT_ONCE)
    return {"results": results}


def _try(target: ConnectTarget, key: bytes, timeout: float, ends: float) -> dict[str, object]:
    found: dict[str, object] = {
        "id": target.id,
        "error": "timeout",
        "errno": "",
        "rtt_us": None,
        "source": "",
        "seen_source": "",
        "bulk": None,
    }
    left = ends - time.monotonic()
    try:
        if left > 0:
            family = socket.AF_INET6 if ":" in target.address else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8 * handshake.BULK_BYTES)
                sock.settimeout(min(timeout, left))
                sock.connect((target.address, target.port))
                found.update(error="silent", source=str(sock.getsockname()[0]))
                _converse(sock, target, key, timeout, ends, found)
    except ConversationError as error:
        found["error"] = str(error)
    except OSError as error:
        # A timeout of our own has no code.
        if found["error"] and error.errno:
            found["errno"] = errno.errorcode.get(error.errno, "")
            found["error"] = _WORDS.get(error.errno, error.strerror or f"errno {error.errno}")
    return {**found, "ok": not found["error"]}


def _converse(
    sock: socket.socket,
    target: ConnectTarget,
    key: bytes,
    timeout: float,
    ends: float,
    found: dict[str, Any],
) -> None:
    """Add the listener's answers to ``found``; once only the bulk is missing, the rest stands."""
    found["seen_source"] = _prove(sock, key, target.port, ends)
    rtt_us = []
    for _ in range(target.pings):
        sent_at = time.perf_counter()
        sock.sendall(handshake.PING)
        _receive(sock, 1, ends)
        rtt_us.append(round((time.perf_counter() - sent_at) * 1e6, 1))
    if rtt_us:
        least = _kernels_rtt_us(sock)
        found["rtt_us"] = min([*rtt_us, *([least] if least else [])])
    found["error"] = ""
    if target.bulk:
        found["bulk"] = False
        patience = max(timeout, SLOW_BULK * (found["rtt_us"] or 0.0) / 1e6)
        sock.sendall(handshake.BULK * handshake.BULK_BYTES)
        try:
            _receive(sock, 1, min(ends, time.monotonic() + patience))
        except ConversationError:
            return
        found["bulk"] = True


def _prove(sock: socket.socket, key: bytes, port: int, ends: float) -> str:
    """Prove the secret to the listener, and have it proved; return our address as it sees it."""
    greeting = _receive(sock, handshake.GREETING_BYTES, ends)
    if not greeting.startswith(handshake.HELLO):
        raise ConversationError("wrong_answer")
    nonce = os.urandom(handshake.NONCE_BYTES)
    sock.sendall(nonce + handshake.proof(key, b"connector", greeting, nonce, port))
    answer = _receive(sock, handshake.ANSWER_BYTES, ends)
    expected = handshake.proof(key, b"listener", greeting, nonce, port)
    if not equal_digests(answer[: handshake.PROOF_BYTES], expected):
        raise ConversationError("wrong_answer")
    return answer[handshake.PROOF_BYTES :].rstrip(b"\0").decode("ascii", "replace")


def _receive(sock: socket.socket, wanted: int, ends: float) -> bytes:
    data = b""
    while len(data) < wanted:
        left = ends - time.monotonic()
        if left <= 0:
            raise socket.timeout
        sock.settimeout(left)
        part = sock.recv(wanted - len(data))
        if not part:
            raise ConversationError("closed")
        data += part
    return data


def _kernels_rtt_us(sock: socket.socket) -> float | None:
    """Return the least round trip that the kernel saw, in which no process has to wait its turn."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _MIN_RTT_OFFSET + 4:
        return None
    least: int = struct.unpack_from("<I", info, _MIN_RTT_OFFSET)[0]
    return float(least) if 0 < least < _NO_RTT else None


def send(
    seconds: float, *, secret: bytes, address: str, port: int, stream_seconds: float = 0.5
) -> dict[str, object]:
    """Stream for ``stream_seconds`` and return ``{"bytes", "seconds", "gbit_s", "retransmits"}``.

    The listener counts, so bytes in buffers here do not count as sent. ``gbit_s`` is null
    if too little arrived.
    """
    port = int(bounded(port, 1, 65535))
    stream_seconds = bounded(stream_seconds, 0.05, MAX_STREAM_SECONDS)
    ends = time.monotonic() + max(0.2, seconds * 0.9)
    try:
        with socket.create_connection((address, port), timeout=max(0.2, seconds * 0.9)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _prove(sock, secret, port, ends)
            _stream(sock, stream_seconds, ends)
            count, took = handshake.COUNT.unpack(_receive(sock, handshake.COUNT.size, ends))
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            # The rest of our buffer is dropped: it would take a slow link seconds.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except ConversationError as error:
        raise probe_failure(
            f"{address}:{port}: not the listener of this check ({error})"
        ) from None
    except OSError as error:
        raise probe_failure(f"{address}:{port}: {error.strerror or error}") from None
    return {
        "bytes": count,
        "seconds": took,
        "gbit_s": count * 8 / took / 1e9 if took > 0.01 else None,
        "retransmits": struct.unpack_from("<I", info, _RETRANSMITS_OFFSET)[0],
    }


def _stream(sock: socket.socket, seconds: float, ends: float) -> None:
    """Send until the listener has counted for this long and answers."""
    sock.sendall(handshake.STREAM + handshake.STREAM_HEAD.pack(seconds))
    chunk = bytes(CHUNK_BYTES)
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    while True:
        left = ends - time.monotonic()
        ready = poll.poll(1000 * left) if left > 0 else []
        if not ready:
            raise TimeoutError(errno.ETIMEDOUT, "the listener counted nothing in time")
        if ready[0][1] & ~select.POLLOUT:
            return
        sock.send(chunk, socket.MSG_DONTWAIT)
