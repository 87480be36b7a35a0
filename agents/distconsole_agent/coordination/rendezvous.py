"""The ranks' rendezvous port: reserved for torch's store and watched, or served for Horovod."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import TYPE_CHECKING, Callable

from distconsole_agent.contract.runspec import HOROVOD, TORCHRUN, RunSpec
from distconsole_agent.coordination.whose import listener_at, trusts
from distconsole_agent.supervisor import notes
from distconsole_agent.supervisor.proctree import descendants
from distconsole_agent.system.procfs import user_name

if TYPE_CHECKING:
    from distconsole_agent.coordination.coordinator import Coordinator
    from distconsole_agent.coordination.whose import Holder
    from distconsole_agent.engines.kvstore import KeyValueStore
    from distconsole_agent.system.loop import Loop, Timer


LOOK_SECONDS = 0.1
"""Seconds between the first looks; a rank takes longer from its start to the rendezvous."""

LOOK_SHARE = 0.01
"""Share of the time since the start that a pause may take: a script that never meets is watched ever more rarely."""
LONGEST_LOOK_SECONDS = 5.0


class HeldPort:
    """Keeps a free TCP port, ``port``, or ``count`` adjacent ones, ``ports``, while it is open; may raise OSError.

    The socket is bound with SO_REUSEADDR, and never listens. On Linux such a socket keeps the port from
    every program that asks for a free one and from binds without SO_REUSEADDR, while torch's store, which
    sets it in both of its implementations, can bind and listen there. Bound to the IPv6 wildcard in dual-stack
    mode it keeps the IPv4 port as well. ``MeetingPoint`` looks for others that set SO_REUSEADDR.
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
        for sock in self._sockets:
            sock.close()


TRIES = 20
"""Tries to find adjacent free ports."""


def _adjacent(count: int) -> list[socket.socket]:
    """Return sockets bound to adjacent ports, or raise OSError or OverflowError."""
    bound: list[socket.socket] = []
    try:
        for _ in range(count):
            port = bound[-1].getsockname()[1] + 1 if bound else 0
            try:
                bound.append(_bound(socket.AF_INET6, "::", port))
            except OSError:
                bound.append(_bound(socket.AF_INET, "0.0.0.0", port))  # noqa: S104 - it never listens
    except (OSError, OverflowError):
        for sock in bound:
            sock.close()
        raise
    return bound


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


class MeetingPoint:
    """Where the ranks of a run meet: a new port for each attempt, ``held`` and watched by the first node.

    Torch's store has no secret, and any program with SO_REUSEADDR can listen on the port that is kept for it,
    until a process of the run listens there: the watch looks for foreign listeners until then.

    Args:
        refuse: Called once an attempt, with the words, when a process of another user listens.
    """

    def __init__(
        self,
        loop: Loop,
        spec: RunSpec,
        note: Callable[[notes.RunNote], None],
        refuse: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._spec = spec
        self._note = note
        self._refuse = refuse
        self.held: HeldPort | KeyValueStore | None = None
        self._ports: set[int] = set()
        self._began = 0.0
        self._timer: Timer | None = None

    @property
    def port(self) -> int | None:
        return None if self.held is None else self.held.port

    def open(self, coordinator: Coordinator) -> int:
        """Hold a port that no rank of an earlier attempt knows, and return it; raises OSError."""
        spec = self._spec
        fresh: HeldPort | KeyValueStore
        if spec.launcher != HOROVOD:
            # An elastic torchrun has its own store at the first, and its ranks have theirs at the second.
            fresh = HeldPort(2 if spec.launcher == TORCHRUN and spec.min_nodes is not None else 1)
        else:
            # Late: other runs start sooner without it.
            from distconsole_agent.engines.kvstore import KeyValueStore, room_for

            room = room_for(sum(len(node.ranks) for node in spec.nodes))
            asks, address = coordinator.whose.ask, spec.nodes[0].address
            fresh = KeyValueStore(self._loop, address, room, asks, self._note_stranger)
        self.close()
        self.held, self._timer = fresh, None
        self._ports = set(fresh.ports) if isinstance(fresh, HeldPort) else set()
        return fresh.port

    def close(self) -> None:
        if self.held is not None:
            self.held.close()

    def _note_stranger(self, address: str) -> None:
        summary = f"a connection from {address} to Horovod's rendezvous was refused"
        hint = (
            "it is no process of yours on one of the run's hosts; where it is, give that host's "
            "address in the configuration, and let its ranks connect from the host's own network"
        )
        self._note(notes.warn("run.stranger", summary, hint))

    def look(self) -> str:
        """Name a listener that does not belong to the run; empty without one."""
        for port in list(self._ports):
            try:
                listener = listener_at((self._spec.nodes[0].address, port))
            except ValueError:  # a name: how the ranks resolve it is unknown here
                self._ports.clear()
                return ""
            if listener is None:
                continue
            if not trusts(listener.uid):
                return (
                    f"user {user_name(listener.uid)} listens on port {port}, where the ranks meet"
                )
            self._ports.discard(port)
            if not _is_of_run(listener):
                self._note(notes.port_conflict(port))
        return ""

    def watch(self) -> None:
        self._began = self._loop.clock()
        self._wait()

    def end_watch(self) -> None:
        """Look for the last time, and report a foreign listener: a rank may have failed because of it."""
        if self._timer is not None and self._ports:
            self._timer.cancel()
            if stranger := self.look():
                self._note(notes.port_stranger(stranger))
        self._ports.clear()

    def _wait(self) -> None:
        if self._ports:
            waited = LOOK_SHARE * (self._loop.clock() - self._began)
            pause = min(max(LOOK_SECONDS, waited), LONGEST_LOOK_SECONDS)
            self._timer = self._loop.call_later(pause, self._look_again)

    def _look_again(self) -> None:
        if stranger := self.look():
            self._ports.clear()
            self._refuse(stranger)
        self._wait()


def _is_of_run(listener: Holder) -> bool:
    """Return True if a process below this one listens, or if that is unknown."""
    socket_name = f"socket:[{listener.inode}]"
    for pid in descendants(os.getpid()):
        folder = f"/proc/{pid}/fd"
        try:
            for name in os.listdir(folder):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(f"{folder}/{name}") == socket_name:
                        return True
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False
