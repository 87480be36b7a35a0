"""Listening TCP sockets."""

from __future__ import annotations

import socket


def listen(address: str, backlog: int, port: int = 0) -> socket.socket:
    """Return a non-blocking listener on ``address``, by default on a free port; raises OSError."""
    family, _, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
