"""The line between the shim of node 0 and the program in which Horovod's own elastic driver runs there.

The driver (``elastic_horovod``) decides, as in horovodrun, which ranks there are and what becomes
of a failure. It starts no process and listens nowhere: which hosts there are, the shim says; what
is to be started, the shims start; and what the ranks ask, they ask the shim's key-value store.
Both directions carry one JSON object a line:

===========  ==========================================  ========================================
from         message                                     means
===========  ==========================================  ========================================
shim         ``hosts: [[name, slots], ...], min_hosts``  the hosts there are now, in order
shim         ``ended: [host, slot, exit code]``          a rank has ended
shim         ``ask: id, host, slot``                     a rank wants its place, as it begins anew
driver       ``start: [host, slot], env``                start this rank
driver       ``end: [host, slot]``                       end this rank: its host is not used any more
driver       ``round: [host, ...], size``                the ranks are placed (anew) on these hosts
driver       ``answer: id, place``                       the place that the rank asked for
driver       ``outlived: [host, slot]``                  this rank's failure does not end the run
driver       ``over: reason``                            the run is over; empty when it succeeded
===========  ==========================================  ========================================
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    import socket

SOCKET = "driver.sock"


class ShimLine:
    """The line to the shim; any thread may send.

    Attributes:
        hosts: Name to slots of the hosts that are there, in the order of the plan.
        min_hosts: The fewest hosts with which the run goes on.
        on_ask: Told of a rank that asks for its place: id, host, slot.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sending = threading.Lock()
        self._ends: dict[tuple[str, int], Exited] = {}
        self.hosts: dict[str, int] = {}
        self.min_hosts = 1
        self.on_ask: Callable[[int, str, int], None] = lambda _ask, _host, _slot: None

    def send(self, **message: Any) -> None:
        """Tell the shim; one that is gone ends this process anyway."""
        with self._sending:
            self._sock.sendall(json.dumps(message).encode("ascii") + b"\n")

    def expect(self, host: str, slot: int) -> Exited:
        """Return what the end of a rank, which is started next, will set."""
        end = self._ends[host, slot] = Exited()
        return end

    def running(self, host: str) -> list[int]:
        """Return the slots of a host whose ranks were started and have not ended."""
        ends = list(self._ends.items())
        return sorted(slot for (where, slot), end in ends if where == host and not end.is_set())

    def take(self, message: dict[str, Any]) -> None:
        """Take one message of the shim."""
        if "hosts" in message:
            self.min_hosts = int(message["min_hosts"])
            self.hosts = {str(name): int(slots) for name, slots in message["hosts"]}
        elif "ended" in message:
            host, slot, code = message["ended"]
            end = self._ends.get((host, slot))
            if end is not None:
                end.code = int(code)
                end.set()
        elif "ask" in message:
            self.on_ask(message["ask"], message["host"], message["slot"])


class Exited(threading.Event):
    """Set once a rank has ended; ``code`` is its exit code then."""

    code = 1


def in_thread(target: Callable[..., None], *args: Any) -> None:
    """Call ``target`` on a thread that keeps nobody from ending."""
    threading.Thread(target=target, args=args, daemon=True).start()
