"""Sends one TCP stream to a listener of another node for a moment and says how much arrived."""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from typing import Any

from distconsole_agent.probes import arguments as read
from distconsole_agent.probes.errors import failed
from distconsole_agent.probes.network import handshake

MAX_SECONDS = 5.0
CHUNK_BYTES = 256 * 1024
_TCP_INFO_BYTES = 104
_TOTAL_RETRANS_OFFSET = 100
"""tcpi_total_retrans in struct tcp_info (linux/tcp.h)."""


def send(args: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Stream for ``stream_seconds`` and return ``{"bytes", "seconds", "gbit_s", "retransmits"}``.

    The listener counts, so that what lies in buffers here is not taken for sent. ``gbit_s`` is null
    when too little arrived to tell.

    Raises:
        ProbeError: when the listener cannot be reached or does not know the secret.
    """
    address = read.text(args, "address")
    port = read.whole(args, "port", 0, 1, 65535)
    stream_seconds = read.number(args, "stream_seconds", 0.5, 0.05, MAX_SECONDS)
    key = read.secret(args)
    try:
        with socket.create_connection((address, port), timeout=max(0.2, seconds * 0.9)) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _prove(sock, key, port)
            _stream(sock, stream_seconds, time.monotonic() + seconds * 0.9)
            count, took = handshake.COUNT.unpack(_exactly(sock, handshake.COUNT.size))
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            # What is still in our buffer is dropped: it would take a slow link seconds.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError as error:
        raise failed(f"{address}:{port}: {error.strerror or error}") from None
    return {
        "bytes": count,
        "seconds": took,
        "gbit_s": count * 8 / took / 1e9 if took > 0.01 else None,
        "retransmits": struct.unpack_from("<I", info, _TOTAL_RETRANS_OFFSET)[0],
    }


def _prove(sock: socket.socket, key: bytes, port: int) -> None:
    greeting = _exactly(sock, handshake.GREETING_BYTES)
    nonce = os.urandom(handshake.NONCE_BYTES)
    sock.sendall(nonce + handshake.proof(key, b"connector", greeting, nonce, port))
    answer = _exactly(sock, handshake.ANSWER_BYTES)
    expected = handshake.proof(key, b"listener", greeting, nonce, port)
    if not handshake.matches(answer[: handshake.PROOF_BYTES], expected):
        raise failed("the listener does not know the secret")


def _stream(sock: socket.socket, seconds: float, due: float) -> None:
    """Send until the listener has counted for so long and answers."""
    sock.sendall(handshake.STREAM + handshake.STREAM_HEAD.pack(seconds))
    chunk = bytes(CHUNK_BYTES)
    poll = select.poll()
    poll.register(sock, select.POLLIN | select.POLLOUT)
    while True:
        left = due - time.monotonic()
        ready = poll.poll(1000 * left) if left > 0 else []
        if not ready:
            raise TimeoutError(errno.ETIMEDOUT, "the listener counted nothing in time")
        if ready[0][1] & ~select.POLLOUT:
            return
        sock.send(chunk, socket.MSG_DONTWAIT)


def _exactly(sock: socket.socket, wanted: int) -> bytes:
    data = b""
    while len(data) < wanted:
        part = sock.recv(wanted - len(data))
        if not part:
            raise OSError("the connection was closed")
        data += part
    return data
