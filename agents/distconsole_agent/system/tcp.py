"""Listening TCP sockets of a run."""

from __future__ import annotations

import socket


def listen(address: str, backlog: int) -> socket.socket:
    """Return a non-blocking listener on a free port of ``address``.

    Raises:
        OSError: when the address is not this host's.
    """
    family, kind, proto, _, where = socket.getaddrinfo(
        address, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.bind(where)
        listener.listen(backlog)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
