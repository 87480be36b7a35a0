"""Horovod's rendezvous over real loopback sockets: what is kept, for whom, how much, and for how long."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from distconsole_agent.coordination.whose import Ends
from distconsole_agent.engines.kvstore import (
    CONNECTION_SECONDS,
    MAX_CONNECTIONS,
    MAX_HEAD_BYTES,
    KeyValueStore,
    Reply,
    Room,
    StoreRequest,
    read_request,
    room_for,
)
from distconsole_agent.system.loop import Loop

ROOM = Room(value_bytes=1000, total_bytes=2500, keys=5)


class Store:
    """A store, the loop that it lives in, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.loop = Loop(clock=lambda: self.now)
        self.refused: list[str] = []
        self.admitted = {"127.0.0.1"}
        self.server = KeyValueStore(
            self.loop, "127.0.0.1", ROOM, self._admits, self.refused.append
        )

    def _admits(self, ends: Ends, answer: Callable[[bool], None]) -> None:
        answer(ends.maker[0] in self.admitted)

    def close(self) -> None:
        self.server.close()
        self.loop.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.server.port), 5)

    def turn(self) -> None:
        for _ in range(8):
            self.loop.run_once(0.002)

    def say(self, text: bytes) -> bytes:
        """Send a request in two halves and return the whole answer."""
        with self.connect() as sock:
            half = len(text) // 2
            sock.sendall(text[:half])
            self.turn()
            sock.sendall(text[half:])
            self.turn()
            answer = b""
            while chunk := sock.recv(65536):
                answer += chunk
            return answer

    def ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        answer = self.say(head.encode() + body)
        head_bytes, _, rest = answer.partition(b"\r\n\r\n")
        return int(head_bytes.split()[1]), rest


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    yield made
    made.close()


def test_a_value_is_what_was_put_and_nothing_is_404(store: Store) -> None:
    assert store.ask("GET", "/global/0") == (404, b"")
    value = bytes(range(256))
    assert store.ask("PUT", "/global/0", value) == (200, b"")
    assert store.ask("GET", "/global/0") == (200, value)
    assert store.ask("GET", "/local_a/0")[0] == 404
    assert store.ask("PUT", "/global/0", b"other") == (200, b"")
    assert store.ask("GET", "/global/0") == (200, b"other")


def test_a_scope_is_forgotten_once_every_rank_in_it_is_connected(store: Store) -> None:
    """As ranks do it: each writes R and rank_R, and says DELETE R when it has read the others."""
    for rank in ("0", "1"):
        store.ask("PUT", f"/global/rank_{rank}", b"x")
        store.ask("PUT", f"/global/{rank}", b"address")
    store.ask("PUT", "/local_a/0", b"another scope")
    assert store.ask("DELETE", "/global/1") == (200, b"")
    assert store.ask("GET", "/global/1") == (200, b"address")  # rank 0 may still need it
    store.ask("DELETE", "/global/1")
    assert store.ask("GET", "/global/0")[0] == 200
    store.ask("DELETE", "/global/0")
    assert [store.ask("GET", f"/global/{key}")[0] for key in ("0", "1", "rank_0")] == [404] * 3
    assert store.ask("GET", "/local_a/0")[0] == 200
    store.ask("PUT", "/global/1", b"again")
    store.ask("DELETE", "/global/1")
    assert store.ask("GET", "/global/1")[0] == 404


def test_only_the_hosts_of_the_run_are_answered(store: Store) -> None:
    store.admitted.clear()
    for _ in range(2):
        with store.connect() as sock:
            sock.sendall(b"GET /global/0 HTTP/1.1\r\n\r\n")
            store.turn()
            with suppress(ConnectionResetError):
                assert sock.recv(100) == b""
    assert store.refused == ["127.0.0.1"]


def test_what_is_kept_is_bounded(store: Store) -> None:
    assert store.ask("PUT", "/s/0", b"x" * 1001)[0] == 400
    assert [store.ask("PUT", f"/s/{key}", b"x" * 1000)[0] for key in range(3)] == [200, 200, 507]
    assert store.ask("PUT", "/s/0", b"")[0] == 200  # what it replaces is free again
    assert store.ask("PUT", "/s/2", b"x" * 1000)[0] == 200
    assert [store.ask("PUT", f"/s/{key}", b"")[0] for key in ("3", "4", "5")] == [200, 200, 507]


@pytest.mark.parametrize(
    "text",
    [
        b"POST /a/b HTTP/1.1\r\n\r\n",
        b"GET /a HTTP/1.1\r\n\r\n",
        b"GET /a/b/c HTTP/1.1\r\n\r\n",
        b"GET /../etc/passwd HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /a/b HTTP/1.1\r\nx: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"x" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_anything_else_is_refused(store: Store, text: bytes) -> None:
    assert store.say(text).startswith(b"HTTP/1.0 400 ")


def test_who_says_nothing_is_hung_up_on(store: Store) -> None:
    with store.connect() as sock:
        store.turn()
        store.now += CONNECTION_SECONDS + 1
        store.turn()
        assert sock.recv(1) == b""


def test_it_forgets_everything_when_it_closes(store: Store) -> None:
    store.ask("PUT", "/s/0", b"x")
    with store.connect() as sock:
        store.turn()
        store.server.close()
        store.server.close()
        assert sock.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            store.connect()


def test_somebody_else_may_answer_in_his_own_time(store: Store) -> None:
    asked: list[tuple[StoreRequest, Reply]] = []

    def take(request: StoreRequest, reply: Reply) -> bool:
        if request.scope == b"place":
            asked.append((request, reply))
        return request.scope == b"place"

    store.server.asks = take
    store.ask("PUT", "/place/0", b"kept")
    assert store.ask("GET", "/s/0")[0] == 404
    with store.connect() as sock, store.connect() as gone:
        for each in (sock, gone):
            each.sendall(b"GET /place/0 HTTP/1.1\r\n\r\n")
            store.turn()
        gone.close()
        store.now += 10 * CONNECTION_SECONDS
        store.turn()
        for request, reply in asked:
            assert request == (b"GET", b"place", b"0", b"")
            reply(b"mine")
            reply(b"twice")
        store.turn()
        assert sock.recv(1000).endswith(b"\r\n\r\nmine")
        assert sock.recv(1000) == b""


def test_an_answer_may_be_held_until_it_is_released(store: Store) -> None:
    puts: list[bytes] = []
    store.server.kept = lambda request: puts.append(request.key)
    store.server.holds = lambda request: request.scope == b"held" and b"b" not in puts
    with store.connect() as present, store.connect() as missing:
        present.sendall(b"GET /held/a HTTP/1.1\r\n\r\n")
        missing.sendall(b"GET /held/c HTTP/1.1\r\n\r\n")
        store.turn()
        store.ask("PUT", "/held/a", b"value")
        store.now += 10 * CONNECTION_SECONDS
        store.server.release()
        store.turn()
        present.setblocking(False)
        with pytest.raises(BlockingIOError):
            present.recv(1)
        store.ask("PUT", "/held/b", b"last")
        store.server.release()
        store.turn()
        present.setblocking(True)
        assert present.recv(1000).endswith(b"\r\n\r\nvalue")
        assert missing.recv(1000).startswith(b"HTTP/1.0 404 ")
    assert puts == [b"a", b"b"]


def test_who_waits_for_somebody_else_is_not_cut_off_for_others(store: Store) -> None:
    store.server.asks = lambda _request, _reply: True
    with store.connect() as waiting:
        waiting.sendall(b"GET /place/0 HTTP/1.1\r\n\r\n")
        store.turn()
        with ExitStack() as stack:
            idle = [stack.enter_context(store.connect()) for _ in range(MAX_CONNECTIONS)]
            for _ in range(MAX_CONNECTIONS // 8):
                store.turn()
            assert idle[0].recv(1) == b""
            waiting.setblocking(False)
            with pytest.raises(BlockingIOError):
                waiting.recv(1)


def test_what_was_kept_can_be_forgotten_at_once(store: Store) -> None:
    assert [store.ask("PUT", f"/s/{key}", b"x" * 1000)[0] for key in range(3)] == [200, 200, 507]
    store.ask("DELETE", "/s/0")
    store.server.clear()
    assert store.ask("GET", "/s/1")[0] == 404
    assert [store.ask("PUT", f"/s/{key}", b"x" * 1000)[0] for key in range(2)] == [200, 200]
    store.ask("DELETE", "/s/1")
    assert store.ask("GET", "/s/0")[0] == 200


def test_a_request_is_read_when_it_is_whole() -> None:
    text = b"PUT /scope/key HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"
    for cut in range(len(text)):
        assert read_request(text[:cut], 100) is None
    assert read_request(text, 100) == StoreRequest(b"PUT", b"scope", b"key", b"hello")


@pytest.mark.parametrize("world", [1, 2, 64, 1024])
def test_there_is_room_for_every_ranks_addresses(world: int) -> None:
    room = room_for(world)
    assert room.value_bytes >= 150 * world
    assert room.keys >= 2 * 6 * world
    assert room.total_bytes <= 1 << 30
