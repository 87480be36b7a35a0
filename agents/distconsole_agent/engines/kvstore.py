"""Horovod's rendezvous: a key-value store over HTTP, in the shim of node 0, for the life of the run.

Horovod's ranks exchange their addresses through it (http_store.cc). Their protocol cannot carry
a secret, so only connections of processes of this user on the run's own hosts are answered, and the
store is bounded.
"""

from __future__ import annotations

import contextlib
import re
import socket
from functools import partial
from typing import Callable, NamedTuple

from distconsole_agent.coordination.whose import Ends
from distconsole_agent.system.door import Door, listen_on
from distconsole_agent.system.loop import READ, WRITE, Loop, Timer

MAX_HEAD_BYTES = 8 * 1024
MAX_CONNECTIONS = 512
"""Below the default of 1024 descriptors for a process; clients that are cut off ask again."""

Reply = Callable[[bytes], None]

CONNECTION_SECONDS = 10.0
BACKLOG = 1024

_REQUEST = re.compile(rb"^(GET|PUT|DELETE) /([^/ ?#]{1,512})/([^/ ?#]{1,512}) HTTP/1\.[01]$")
_LENGTH = re.compile(rb"^content-length:[ \t]*(\d{1,12})[ \t]*$", re.IGNORECASE | re.MULTILINE)


class Room(NamedTuple):
    """Bounds of the store: bytes of one value, bytes of all values, number of keys."""

    value_bytes: int
    total_bytes: int
    keys: int


def room_for(world_size: int) -> Room:
    """Return the room that ranks of such a job need, with a margin.

    A rank's value holds an address of some 150 bytes for every other rank, in each of three groups
    (all, this host's, those with its local rank) and again for each process set.
    """
    value_bytes = 64 * 1024 + 1024 * world_size
    return Room(value_bytes, min(16 * world_size * value_bytes, 1 << 30), 64 * (world_size + 4))


class KeyValueStore:
    """Listens on ``address``, on a free port.

    Args:
        admits: Calls back, at once or later, with True if a connection is of the run; until then it is not read.
        refused: Called once for each address whose connections are refused.

    Attributes:
        asks: Takes over a GET and replies later; returns False to leave it to the store.
        holds: Returns True if the answer to this GET has to wait, until ``release``.
        kept: Called after each PUT.

    Raises OSError when the address is not this host's.
    """

    def __init__(
        self,
        loop: Loop,
        address: str,
        room: Room,
        admits: Callable[[Ends, Callable[[bool], None]], None],
        refused: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._room = room
        self._admits = admits
        self._refused = refused
        self._values: dict[tuple[bytes, bytes], bytes] = {}
        self._done: dict[bytes, set[bytes]] = {}
        self._bytes = 0
        self._strangers: set[str] = set()
        self._connections: dict[int, _Connection] = {}
        self._held: list[tuple[StoreRequest, Reply]] = []
        self.asks: Callable[[StoreRequest, Reply], bool] = lambda _request, _reply: False
        self.holds: Callable[[StoreRequest], bool] = lambda _request: False
        self.kept: Callable[[StoreRequest], None] = lambda _request: None
        listener = listen_on(address, BACKLOG)
        self.port = int(listener.getsockname()[1])
        self._door: Door | None = Door(loop, listener, self._enter)

    def close(self) -> None:
        if self._door is not None:
            self._door.close()
            self._door = None
        for connection in list(self._connections.values()):
            connection.close()
        self.clear()

    def clear(self) -> None:
        self._values.clear()
        self._done.clear()
        self._bytes = 0

    def release(self) -> None:
        held, self._held = self._held, []
        for request, reply in held:
            if self.holds(request):
                self._held.append((request, reply))
            else:
                value = self._values.get((request.scope, request.key))
                reply(_response(404) if value is None else _response(200, value))

    def _enter(self, sock: socket.socket) -> None:
        try:
            # IPv6 adds flow and scope to both.
            ends = Ends(sock.getpeername()[:2], sock.getsockname()[:2])
        except OSError:  # gone already
            sock.close()
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            connections = self._connections.values()
            oldest = next((each for each in connections if not each.waits), None)
            (oldest or next(iter(connections))).close()
        connection = self._connections[sock.fileno()] = _Connection(
            self._loop, sock, self._room.value_bytes, self._answer, self._connections
        )
        self._admits(ends, partial(self._admit, connection, ends.maker[0]))

    def _admit(self, connection: _Connection, address: str, ours: bool) -> None:
        if ours:
            connection.begin()
            return
        connection.close()
        if address not in self._strangers and len(self._strangers) < MAX_CONNECTIONS:
            self._strangers.add(address)
            self._refused(address)

    def _answer(self, request: StoreRequest, reply: Reply) -> None:
        method, scope, key, body = request
        if method == b"PUT":
            old = self._values.get((scope, key))
            size = self._bytes + len(body) - len(old or b"")
            is_full = old is None and len(self._values) >= self._room.keys
            if is_full or size > self._room.total_bytes:
                reply(_response(507))
                return
            self._bytes = size
            self._values[scope, key] = body
            self.kept(request)
            reply(_response(200))
        elif method == b"DELETE":
            self._delete(scope, key)
            reply(_response(200))
        elif not self.asks(request, lambda value: reply(_response(200, value))):
            self._held.append((request, reply))
            self.release()

    def _delete(self, scope: bytes, key: bytes) -> None:
        """Note that the rank ``key`` needs no more values; once all in a scope do, forget the scope.

        A rank sends this as soon as it is connected to the others, who may still have to read its
        values; and the same names come again when a script calls ``hvd.init()`` again. A rank R
        writes ``R`` and ``rank_R``, and all have written before the first is connected to all.
        """
        kept = [known for known in self._values if known[0] == scope]
        done = self._done.setdefault(scope, set())
        done.add(key)
        if done.issuperset(name for _scope, name in kept if name.isdigit()):
            for known in kept:
                self._bytes -= len(self._values.pop(known))
            del self._done[scope]


class StoreRequest(NamedTuple):
    """The request of one connection; ``body`` is empty unless it is a PUT."""

    method: bytes
    scope: bytes
    key: bytes
    body: bytes


class _Connection:
    """One request and its answer; ``waits``: True while the answer is outstanding."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        max_body_bytes: int,
        answer: Callable[[StoreRequest, Reply], None],
        among: dict[int, _Connection],
    ) -> None:
        self._loop = loop
        self._sock = sock
        self._max_body_bytes = max_body_bytes
        self._answer = answer
        self._among = among
        self._unread = bytearray()
        self._unsent: memoryview | None = None
        self.waits = False
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timer: Timer = loop.call_later(CONNECTION_SECONDS, self.close)

    def begin(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.watch(self._sock.fileno(), READ, self._ready)

    def close(self) -> None:
        self._timer.cancel()
        if self._sock.fileno() >= 0:
            self._among.pop(self._sock.fileno(), None)
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def _ready(self, events: int) -> None:
        if self._unsent is not None:
            self._send(self._unsent)
        elif events & READ:
            self._read()

    def _read(self) -> None:
        try:
            chunk = self._sock.recv(1 << 16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            chunk = b""
        if not chunk:
            self.close()
            return
        if self.waits:
            return
        self._unread += chunk
        try:
            request = read_request(bytes(self._unread), self._max_body_bytes)
        except ValueError:
            self._reply(_response(400))
            return
        if request is not None:
            self.waits = True
            self._timer.cancel()
            self._answer(request, self._reply)

    def _reply(self, answer: bytes) -> None:
        """Send the answer, once; a client that has gone gets none."""
        if self._unsent is None and self._sock.fileno() >= 0:
            self.waits = False
            self._timer.cancel()
            self._timer = self._loop.call_later(CONNECTION_SECONDS, self.close)
            self._send(memoryview(answer))

    def _send(self, unsent: memoryview) -> None:
        try:
            self._unsent = unsent[self._sock.send(unsent) :]
        except (BlockingIOError, InterruptedError):
            self._unsent = unsent
        except OSError:
            self.close()
            return
        if self._unsent:
            self._loop.watch(self._sock.fileno(), WRITE, self._ready)
        else:
            self.close()


def read_request(text: bytes, max_body_bytes: int) -> StoreRequest | None:
    """Return the request in ``text``; None while it is not all there. Raises ValueError."""
    head, blank, rest = text.partition(b"\r\n\r\n")
    if len(head) > MAX_HEAD_BYTES:
        raise ValueError("a head that is too long")
    if not blank:
        return None
    first, _, fields = head.partition(b"\r\n")
    asked = _REQUEST.match(first)
    if asked is None:
        raise ValueError("not a request for SCOPE/KEY")
    found = _LENGTH.search(fields.replace(b"\r\n", b"\n"))
    length = int(found[1]) if found else 0
    if length > max_body_bytes:
        raise ValueError("a value that is too long")
    if len(rest) < length:
        return None
    return StoreRequest(asked[1], asked[2], asked[3], rest[:length])


_REASONS = {200: b"OK", 400: b"Bad Request", 404: b"Not Found", 507: b"Insufficient Storage"}


def _response(status: int, body: bytes = b"") -> bytes:
    head = b"HTTP/1.0 %d %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    return head % (status, _REASONS[status], len(body)) + body
