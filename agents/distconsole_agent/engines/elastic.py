"""Node 0's part of a run by elastic Horovod: it starts and ends ranks for Horovod's driver, and reports their ends.

The driver is a process of this user below this shim (``elastic_horovod``); still, its messages are
checked like a stranger's.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, NamedTuple

from distconsole_agent.coordination.channel import LinkError, Wire
from distconsole_agent.supervisor import notes
from distconsole_agent.system import unix
from distconsole_agent.system.door import Door
from distconsole_agent.system.loop import Loop

if TYPE_CHECKING:
    from distconsole_agent.contract.runspec import RunSpec
    from distconsole_agent.coordination.blame import Failure
    from distconsole_agent.engines.kvstore import KeyValueStore, Reply, StoreRequest

NO_PLACE = b"-1,-1,-1,-1,-1,-1"
"""Horovod's answer to a rank that is not of the job (hosts.INVALID_SLOT_INFO)."""

GLOBAL_SCOPE, NAME_PREFIX = b"global", b"rank_"
"""The scope in which ranks look for all others, and the prefix of the first of the two keys of each
(http_store.cc of Horovod, rendezvous/context.cc of Gloo)."""

MEET_SECONDS = 600.0
"""Seconds in which all ranks must arrive; Horovod's own HOROVOD_ELASTIC_TIMEOUT."""

PATIENCE_SECONDS = 3.0
"""Seconds after which a rank that has not noticed a failure is in a collective with the failed one."""

DRIVER_SOCKET = "driver.sock"
MAX_LINE_BYTES = 1 << 20
MAX_RANKS_NAMED = 8
TIME_LIMIT = "HOROVOD_GLOO_TIMEOUT_SECONDS"
MAX_ASKS = 1 << 16
MAX_WHY_CHARS = 500

_PLACE = re.compile(r"^-?\d{1,7}(,-?\d{1,7}){5}$")
_ASKED = re.compile(rb"^([0-9A-Za-z.-]{1,255}):(\d{1,7})$")


class Slot(NamedTuple):
    """Where one rank may run: the node's index, and its local rank there."""

    node: int
    local_rank: int


class ElasticEvents(NamedTuple):
    """Callbacks for the driver's requests.

    Attributes:
        start: Start this rank, with these variables.
        end: End this rank; its end counts as no failure.
        note: Something the operator should know.
        over: The run is over: why it failed, or nothing; and the failures that it had.
    """

    start: Callable[[Slot, dict[str, str]], None]
    end: Callable[[Slot], None]
    note: Callable[[notes.RunNote], None]
    over: Callable[[str, list[Failure]], None]


class Elastic:
    """Serves the driver, from ``open`` to ``close``; ``running``: ranks that are not known to have ended."""

    def __init__(self, loop: Loop, spec: RunSpec, events: ElasticEvents) -> None:
        self._loop = loop
        self._spec = spec
        self._events = events
        self._names = [host_name(index, node.host) for index, node in enumerate(spec.nodes)]
        self._indexes = {name: index for index, name in enumerate(self._names)}
        self._lost: set[int] = set()
        self._failures: dict[Slot, Failure] = {}
        self._asks: dict[int, tuple[Slot, Reply]] = {}
        self._asked = 0
        self._rounds = 0
        self._size = 0
        self._reported_round = 0
        self._broken = False
        self._there: tuple[set[bytes], set[bytes]] = (set(), set())
        """Keys of the ranks that have published their address, and their host's name."""
        self._store: KeyValueStore
        self._wire: Wire | None = None
        self._door: Door | None = None
        self._path = ""
        self.is_over = False
        self.running: set[Slot] = set()

    def open(self, run_dir: str, store: KeyValueStore) -> None:
        """Listen for the driver, or raise OSError; watch the ranks' requests to ``store``."""
        self._store = store
        store.asks, store.holds, store.kept = self.asked, self.holds, self.kept
        self._path = os.path.join(run_dir, DRIVER_SOCKET)
        listener = unix.listen(self._path, 1)
        listener.setblocking(False)
        self._door = Door(self._loop, listener, self._enter, always=True)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    # Events of the run

    def ended(self, slot: Slot, exit_code: int) -> None:
        """Note the end of a rank; ``failed`` came before, if it failed by itself."""
        if slot in self.running:
            self.running.discard(slot)
            self._tell(ended=[self._names[slot.node], slot.local_rank, exit_code])
            self._break_round()
            if exit_code and not self._have_met:
                self._end("a rank ended before all had met")

    def failed(self, failure: Failure) -> None:
        """Note that a rank failed by itself; the driver decides on the run."""
        ranks = self._spec.nodes[failure.node].ranks
        if failure.rank in ranks:
            self._failures[Slot(failure.node, ranks.index(failure.rank))] = failure

    def node_lost(self, index: int) -> None:
        self._lost.add(index)
        self._tell_hosts()
        for slot in sorted(self.running):
            if slot.node == index:
                self.ended(slot, 1)

    def asked(self, request: StoreRequest, reply: Reply) -> bool:
        """Take over the requests of ranks for their place; leave others to the store."""
        if request.scope != b"rank_and_size":
            return False
        slot, found = None, _ASKED.match(request.key)
        with contextlib.suppress(LookupError):
            slot = found and self._placed([found[1].decode("ascii"), int(found[2])])
        if slot is None or len(self._asks) >= MAX_ASKS:
            reply(NO_PLACE)
            return True
        self._asked += 1
        self._asks[self._asked] = slot, reply
        self._tell(ask=self._asked, host=self._names[slot.node], slot=slot.local_rank)
        return True

    def holds(self, request: StoreRequest) -> bool:
        """Return True if a rank that looks for another has to wait until all are there.

        Ranks have only ``HOROVOD_GLOO_TIMEOUT_SECONDS`` to find each other, for which some may
        start too late. Each writes ``rank_R`` and then ``R`` before it reads those of the others,
        so all begin with that at once. If one has ended they shall not wait in vain.
        """
        if request.scope != GLOBAL_SCOPE or self._broken:
            return False
        return len(self._there[request.key.startswith(NAME_PREFIX)]) < self._size

    def kept(self, request: StoreRequest) -> None:
        """Note a stored value, and release the ranks if it is the last one they wait for."""
        if request.scope == GLOBAL_SCOPE:
            there = self._there[request.key.startswith(NAME_PREFIX)]
            there.add(request.key)
            if len(there) == self._size:
                self._store.release()

    # The driver

    def _enter(self, sock: socket.socket) -> None:
        if self._wire is not None or unix.peer_uid(sock) != os.getuid():
            sock.close()
            return
        self._wire = Wire(self._loop, sock, self.read)
        self._wire.max_line_bytes = MAX_LINE_BYTES
        self._tell_hosts()

    def read(self) -> None:
        try:
            for line in self._wire.lines() if self._wire is not None else []:
                self._take(json.loads(line))
        except (LinkError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            if self._wire is not None:
                self._wire.close()  # the driver's own end follows

    def _tell(self, **message: Any) -> None:
        if self._wire is None:
            return
        try:
            self._wire.write(json.dumps(message).encode("ascii"))
        except LinkError:
            self._wire.close()

    def _tell_hosts(self) -> None:
        hosts = [
            [self._names[index], len(node.ranks)]
            for index, node in enumerate(self._spec.nodes)
            if index not in self._lost
        ]
        # Of a plan that asks for all its nodes, all must be left.
        fewest = min(self._spec.fewest_nodes, len(self._spec.nodes))
        self._tell(hosts=hosts, min_hosts=fewest)

    def _take(self, message: object) -> None:
        if not isinstance(message, dict):
            raise TypeError("not an object")
        if self.is_over:
            return
        if "start" in message:
            slot = self._placed(message["start"])
            env = {str(name): str(value) for name, value in message["env"].items()}
            self.running.add(slot)
            self._events.start(slot, env)
        elif "end" in message:
            self._give_up(self._placed(message["end"]))
        elif "round" in message:
            self._begin([self._indexes[name] for name in message["round"]], int(message["size"]))
        elif "answer" in message:
            _, reply = self._asks.pop(message["answer"])
            if _PLACE.match(message["place"]):
                reply(message["place"].encode("ascii"))
        elif "outlived" in message:
            self._outlived(self._placed(message["outlived"]))
        elif "over" in message:
            self._end(str(message["over"])[:MAX_WHY_CHARS])

    def _give_up(self, slot: Slot) -> None:
        if slot not in self.running:
            return
        self._events.end(slot)
        node = self._spec.nodes[slot.node]
        rank = node.ranks[slot.local_rank]
        summary = f"rank {rank} on {node.host} is ended: Horovod uses {node.host} no more"
        hint = "a host goes with the first of its ranks that fails"
        self._events.note(notes.info("run.rank_lost", summary, hint, rank=rank, host=node.host))

    @property
    def _have_met(self) -> bool:
        """True once the ranks have formed a world: before that none has a state to go on from.

        The first ``hvd.init()`` is outside of Horovod's retries, so all would fail in it, after
        its time limit.
        """
        return self._rounds > 1 or len(self._there[False]) == self._size

    def _end(self, why: str) -> None:
        if not self.is_over:
            self.is_over = True
            self._events.over(why, list(self._failures.values()))

    def _break_round(self) -> None:
        """Keep no rank waiting for one that will not come; Horovod has a time limit for that."""
        self._broken = True
        self._store.release()

    def _begin(self, nodes: list[int], size: int) -> None:
        self._rounds += 1
        self._size, self._broken, self._there = size, False, (set(), set())
        self._store.clear()
        number = self._rounds
        self._loop.call_later(
            MEET_SECONDS, lambda: self._break_round() if number == self._rounds else None
        )
        if self._rounds == 1:
            return
        planned = sum(len(node.ranks) for node in self._spec.nodes)
        hosts = ", ".join(self._spec.nodes[index].host for index in nodes)
        summary = f"Horovod goes on with {size} of {planned} ranks, on {hosts}"
        hint = "each rank is shown under the number with which it began"
        self._events.note(notes.info("run.world_size", summary, hint))

    def _outlived(self, slot: Slot) -> None:
        """Report the failure of a rank that the run outlives; a lost node is reported already."""
        self._loop.call_later(PATIENCE_SECONDS, partial(self._tell_awaited, self._rounds))
        failure = self._failures.get(slot)
        if failure is None:
            return
        host, rank = self._spec.nodes[slot.node].host, failure.rank
        then = f"Horovod goes on from the last commit without {host}"
        summary = f"rank {rank} on {host} failed: {failure.error}; {then}"
        hint = f"distconsole logs {self._spec.run} --rank {rank}"
        more = {"rank": rank, "host": host, "seen": failure.traceback}
        self._events.note(notes.warn("run.rank_lost", summary, hint, **more))

    def _tell_awaited(self, number: int) -> None:
        """Report the ranks that Horovod waits for before it goes on, once a round."""
        awaited = self.running - {slot for slot, _ in self._asks.values()}
        if number != self._rounds or number == self._reported_round or self.is_over or not awaited:
            return
        self._reported_round = number
        nodes = self._spec.nodes
        ranks = [nodes[slot.node].ranks[slot.local_rank] for slot in sorted(awaited)]
        named = ", ".join(map(str, ranks[:MAX_RANKS_NAMED]))
        more = f" and {len(ranks) - MAX_RANKS_NAMED} more" if len(ranks) > MAX_RANKS_NAMED else ""
        limit = self._spec.env.get(TIME_LIMIT, "30")
        whom = f"ranks {named}{more}, which have" if len(ranks) > 1 else f"rank {named}, which has"
        summary = f"Horovod waits for {whom} not noticed the failure: {limit} s at most"
        hint = f"a smaller {TIME_LIMIT} (--env) makes this shorter"
        self._events.note(notes.info("run.awaited", summary, hint))

    # Names

    def _placed(self, named: list[Any]) -> Slot:
        """Return the slot that the driver means. Raises LookupError when the plan has none."""
        name, local_rank = named
        slot = Slot(self._indexes[name], int(local_rank))
        if not 0 <= slot.local_rank < len(self._spec.nodes[slot.node].ranks):
            raise LookupError(f"no slot {local_rank} on {name}")
        return slot


def host_name(index: int, host: str) -> str:
    """Return Horovod's name of a host; it becomes a part of an HTTP path."""
    return f"{index}-{re.sub(r'[^A-Za-z0-9.-]+', '-', host)}"[:255]
