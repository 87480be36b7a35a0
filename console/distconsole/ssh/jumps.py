"""Jump hosts, for either transport: each is reached once for all connections through it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from typing import Generic, Protocol, TypeVar

from distconsole.errors import ConnectError, NodeError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName, is_whole
from distconsole.ssh.ssh_config import SshConfig, SshOptions

MAX_JUMPS = 8


class Jump(Protocol):
    @property
    def alive(self) -> bool: ...

    def close(self) -> None: ...


J = TypeVar("J", bound=Jump)
Hops = tuple[str, ...]
"""As in a ProxyJump: nearest first, each ``[user@]host[:port]``."""


def way_to(host: Host, config: SshConfig) -> list[SshOptions]:
    """Return how ``host`` is reached and, nearest to it first, the hosts through which its ssh_config leads.

    Raises ConnectError if it jumps through itself, which would wait for ever.
    """
    found = [config.find(host)]
    hops = found[0].proxy_jump
    while hops:
        if len(found) > MAX_JUMPS:
            raise ConnectError(
                f"{found[0].alias}: ProxyJump goes through more than {MAX_JUMPS} hosts",
                "does a jump host jump through itself? see ssh_config",
            )
        found.append(config.find(hop_host(hops[-1])))
        hops = hops[:-1] or found[-1].proxy_jump
    return found


class Jumps(Generic[J]):
    """Connections to jump hosts; ``connect`` makes one to a host by way of the hops before it."""

    def __init__(self, connect: Callable[[Host, Hops], J]) -> None:
        self._connect = connect
        self._shared: dict[Hops, Future[J]] = {}
        self._lock = threading.Lock()

    def reach(self, hops: Hops) -> J:
        """Return the connection to the last of ``hops``; one attempt serves all waiting callers.

        Raises ``connect``'s exceptions, with the hosts on the way.
        """
        mine = False
        with self._lock:
            shared = self._shared.get(hops)
            if shared is None or (
                shared.done() and (shared.exception() is not None or not shared.result().alive)
            ):
                mine, shared = True, Future()
                self._shared[hops] = shared
        if mine:
            try:
                shared.set_result(self._connect(hop_host(hops[-1]), hops[:-1]))
            except NodeError as error:
                told = copy(error)
                told.message = f"by way of {hops[-1]}: {error.message}"
                told.args = (told.message,)
                shared.set_exception(told)
            except BaseException as error:
                # Waiting callers must not wait for ever.
                shared.set_exception(error)
                raise
        return shared.result()

    def close(self) -> None:
        with self._lock:
            shared, self._shared = list(self._shared.values()), {}
        for jump in shared:
            if jump.done() and jump.exception() is None:
                jump.result().close()


def hop_host(text: str) -> Host:
    """Return one ``[user@]host[:port]`` or ``ssh://`` of a ProxyJump as a host."""
    text = text.removeprefix("ssh://").rstrip("/")
    user, _, rest = text.rpartition("@")
    if rest.startswith("["):
        name, _, port = rest[1:].partition("]")
        port = port.removeprefix(":")
    elif rest.count(":") == 1:
        name, _, port = rest.partition(":")
    else:
        name, port = rest, ""
    return Host(HostName(name), user=user or None, port=int(port) if is_whole(port) else None)
