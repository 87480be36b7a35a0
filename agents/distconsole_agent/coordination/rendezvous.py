"""The port at which a run's ranks find each other: kept free for torch's own store, or served for Horovod."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING, Any, Callable, Union

from distconsole_agent.contract.runspec import HOROVOD, MAX_NODES, TORCHRUN, RunSpec

if TYPE_CHECKING:
    from distconsole_agent.coordination.coordinator import Coordinator
    from distconsole_agent.engines.kvstore import KeyValueStore
    from distconsole_agent.system.loop import Loop


class HeldPort:
    """Keeps a free TCP port, or ``count`` adjacent ones, for as long as it is open; it never listens.

    The socket is bound with SO_REUSEADDR. On Linux such a socket keeps the port from everybody who
    asks for a free one and from binds without SO_REUSEADDR, while torch's store, which sets
    SO_REUSEADDR in both of its implementations, can bind and listen on it. Bound to the IPv6
    wildcard in dual-stack mode it keeps the IPv4 port as well. Whoever else sets SO_REUSEADDR can
    listen there, too, until torch's store does: ``portwatch`` looks for that.

    Attributes:
        ports: All of them.
        port: The first one.

    Raises:
        OSError: when no port is free.
    """

    def __init__(self, count: int = 1) -> None:
        for _ in range(TRIES - 1):
            with contextlib.suppress(OSError, OverflowError):
                self._sockets = _adjacent(count)
                break
        else:
            self._sockets = _adjacent(count)
        self.ports = [int(sock.getsockname()[1]) for sock in self._sockets]
        self.port = self.ports[0]

    def close(self) -> None:
        """Give the ports back."""
        for sock in self._sockets:
            sock.close()


TRIES = 20
"""For adjacent ports: the second may be taken."""

Rendezvous = Union[HeldPort, "KeyValueStore"]


def open_rendezvous(
    loop: Loop, spec: RunSpec, coordinator: Coordinator, note: Callable[[dict[str, Any]], None]
) -> Rendezvous:
    """Return what the ranks of this run find each other by; its ``port`` is their ``{port}``.

    Raises:
        OSError: when no port is free, or the address is not this host's.
    """
    if spec.launcher != HOROVOD:
        # An elastic torchrun has its own store at the first, and its ranks have theirs at the second.
        return HeldPort(2 if spec.launcher == TORCHRUN and spec.min_nodes < MAX_NODES else 1)
    # Late: other runs start sooner without it.
    from distconsole_agent.engines.kvstore import KeyValueStore, room_for

    def refused(address: str) -> None:
        note(
            {
                "check": "run.stranger",
                "severity": "warn",
                "summary": f"a connection from {address} to Horovod's rendezvous was refused",
                "hint": "it is no process of yours on one of the run's hosts; where it is, give that host's "
                "address in the configuration, and let its ranks connect from the host's own network",
            }
        )

    ranks = sum(len(node.ranks) for node in spec.nodes)
    return KeyValueStore(
        loop,
        spec.nodes[0].address,
        room_for(ranks),
        coordinator.whose.ask,
        refused,
    )


def _adjacent(count: int) -> list[socket.socket]:
    """Return sockets bound to so many adjacent ports.

    Raises:
        OSError: when one of them is taken.
        OverflowError: when one of them is no port.
    """
    bound: list[socket.socket] = []
    try:
        for _ in range(count):
            port = bound[-1].getsockname()[1] + 1 if bound else 0
            bound.append(_bound_anywhere(port))
    except (OSError, OverflowError):
        for sock in bound:
            sock.close()
        raise
    return bound


def _bound_anywhere(port: int) -> socket.socket:
    try:
        return _bound(socket.AF_INET6, "::", port)
    except OSError:
        return _bound(socket.AF_INET, "0.0.0.0", port)  # noqa: S104 - it never listens


def _bound(family: int, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock
