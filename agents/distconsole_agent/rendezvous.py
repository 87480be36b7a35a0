"""The port at which a run's ranks find each other: kept free for torch's own store, or served for Horovod."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Callable, Union

from distconsole_agent.runspec import HOROVOD, RunSpec

if TYPE_CHECKING:
    from distconsole_agent.coordinator import Coordinator
    from distconsole_agent.kvstore import KeyValueStore
    from distconsole_agent.loop import Loop


class HeldPort:
    """Keeps a free TCP port for as long as it is open; it never listens.

    The socket is bound with SO_REUSEADDR. On Linux such a socket keeps the port from everybody who
    asks for a free one and from binds without SO_REUSEADDR, while torch's store, which sets
    SO_REUSEADDR in both of its implementations, can bind and listen on it. Bound to the IPv6
    wildcard in dual-stack mode it keeps the IPv4 port as well.

    Raises:
        OSError: when no port is free.
    """

    def __init__(self) -> None:
        try:
            self._socket = _bound(socket.AF_INET6, "::")
        except OSError:
            self._socket = _bound(socket.AF_INET, "0.0.0.0")  # noqa: S104 - it never listens
        self.port = int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Give the port back."""
        self._socket.close()


Rendezvous = Union[HeldPort, "KeyValueStore"]


def open_rendezvous(
    loop: Loop, spec: RunSpec, coordinator: Coordinator, note: Callable[[dict[str, Any]], None]
) -> Rendezvous:
    """Return what the ranks of this run find each other by; its ``port`` is their ``{port}``.

    Raises:
        OSError: when no port is free, or the address is not this host's.
    """
    if spec.launcher != HOROVOD:
        return HeldPort()
    # Late: other runs start sooner without it.
    from distconsole_agent.kvstore import KeyValueStore, room_for

    hosts = frozenset(node.address for node in spec.nodes)

    def refused(address: str) -> None:
        note(
            {
                "check": "run.stranger",
                "severity": "warn",
                "summary": f"a connection from {address} to Horovod's rendezvous was refused",
                "hint": "it is none of the run's hosts; where it is, give its address in the configuration",
            }
        )

    ranks = sum(len(node.ranks) for node in spec.nodes)
    return KeyValueStore(
        loop,
        spec.nodes[0].address,
        room_for(ranks),
        lambda address: address in hosts or address in coordinator.met,
        refused,
    )


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
