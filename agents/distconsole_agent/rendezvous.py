"""Keeps a TCP port for the run's rendezvous, which torch itself will listen on; it never listens."""

from __future__ import annotations

import socket


def hold_port() -> socket.socket:
    """Return a socket that keeps a free port for as long as it is open.

    It is bound with SO_REUSEADDR and never listens. On Linux such a socket keeps the port from
    everybody who asks for a free one and from binds without SO_REUSEADDR, while torch's store,
    which sets SO_REUSEADDR in both of its implementations, can bind and listen on it. Bound to
    the IPv6 wildcard in dual-stack mode it keeps the IPv4 port as well.

    Raises:
        OSError: when no port is free.
    """
    try:
        return _bound(socket.AF_INET6, "::")
    except OSError:
        return _bound(socket.AF_INET, "0.0.0.0")  # noqa: S104 - it never listens


def port_of(held: socket.socket) -> int:
    """Return the port that is kept."""
    return int(held.getsockname()[1])


def _bound(family: int, address: str) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock
