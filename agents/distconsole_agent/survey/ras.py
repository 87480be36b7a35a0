"""NCCL's own view of a job, by the text protocol of its RAS threads, which listen on each node's loopback.

``CLIENT PROTOCOL 2``, ``TIMEOUT N`` and ``VERBOSE STATUS``, one a line; the answer ends with the connection
(NCCL 2.24 and later, user guide, "RAS"). It is evidence beside others: it knows counts, not causes.
"""

from __future__ import annotations

import socket
import time

PORT = 28028
MAX_BYTES = 256 * 1024
MAX_LINES, MAX_LINE = 16, 300
HEADS = ("Errors", "Warnings")
"""Sections that say what is wrong; tables of what is well stand before them."""


def ask_ras(seconds: float, port: int = PORT) -> list[str]:
    """Return what NCCL finds wrong in the job of this node, a line each; nothing where nobody listens."""
    until = time.monotonic() + seconds
    told = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=min(seconds, 0.5)) as sock:
            for line in ("CLIENT PROTOCOL 2", f"TIMEOUT {max(1, int(seconds))}"):
                sock.sendall(f"{line}\n".encode("ascii"))
                answer = sock.recv(4096)
                if not answer.startswith((b"SERVER PROTOCOL ", b"OK")):
                    return []
            sock.sendall(b"VERBOSE STATUS\n")
            while len(told) < MAX_BYTES and time.monotonic() < until:
                sock.settimeout(max(0.01, until - time.monotonic()))
                chunk = sock.recv(1 << 16)
                if not chunk:
                    break
                told += chunk
    except OSError:
        pass
    return read_status(told.decode("utf-8", "replace"))


def read_status(text: str) -> list[str]:
    """Return the paragraphs below ``Errors`` and ``Warnings``, each as one line: what is wrong, then its ranks."""
    found: list[str] = []
    inside = False
    for paragraph in text.replace("\r", "").split("\n\n"):
        lines = [" ".join(line.split()) for line in paragraph.splitlines() if line.strip()]
        if lines and lines[0] in HEADS:
            inside, lines = True, [line for line in lines[1:] if set(line) != {"="}]
        elif len(lines) > 1 and set(lines[1]) == {"="}:
            inside = False
        if inside and lines:
            found.append(f"{lines[0]}: {'; '.join(lines[1:])}"[:MAX_LINE])
    return found[:MAX_LINES]
