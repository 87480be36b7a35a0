"""One channel, many callers, and no slow one that holds up another."""

import contextlib
import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from distconsole.errors import AgentError, LinkLostError, NodeError, RequestError
from distconsole.rpc import conversation as talking
from distconsole.rpc import stream as streams
from distconsole.rpc.conversation import Conversation
from distconsole.rpc.stream import ItemStream
from distconsole.rpc.wire import check_item
from fakes.shims import wait_until


class ScriptedChannel:
    """The far end of a channel, played by the test: the one seam there is."""

    def __init__(self) -> None:
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self.closed = threading.Event()

    @property
    def waits_on(self) -> tuple[int, ...]:
        return () if self.closed.is_set() else (self._ours.fileno(),)

    def read_now(self, max_bytes: int) -> bytes | None:
        try:
            return self._ours.recv(max_bytes)
        except BlockingIOError:
            return None
        except OSError:
            raise LinkLostError("cut") from None

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        raise LinkLostError("cut")

    def send(self, data: bytes, timeout: float) -> None:
        if self.closed.is_set():
            raise LinkLostError("cut")
        self.said.put(json.loads(data))

    def stderr_tail(self) -> str:
        return ""

    def exit_code(self, timeout: float) -> int | None:
        return None

    def close(self) -> None:
        self.closed.set()
        self._ours.close()
        self._theirs.close()

    def answer(self, number: int, **body: Any) -> None:
        self.raw(json.dumps({"id": number, **body}).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        with contextlib.suppress(OSError):  # it is closed while we speak
            self._theirs.sendall(data)

    def cut(self) -> None:
        self._theirs.shutdown(socket.SHUT_WR)

    def next(self, op: str) -> dict[str, Any]:
        """Return the next request for ``op``, passing over pings."""
        while True:
            request = self.said.get(timeout=5)
            if request["op"] == op:
                return request


@pytest.fixture
def talk() -> Iterator[tuple[Conversation, ScriptedChannel]]:
    channel = ScriptedChannel()
    conversation = Conversation("n", channel, b"")
    yield conversation, channel
    conversation.close()


def in_thread(work: Callable[[], object]) -> Callable[[], object]:
    """Start ``work``; the function returned waits for what it returns or raises."""
    done: queue.Queue[object] = queue.Queue()

    def do() -> None:
        try:
            done.put(work())
        except NodeError as error:
            done.put(error)

    threading.Thread(target=do, daemon=True).start()
    return lambda: done.get(timeout=5)


def entries(*numbers: int, text: str = "") -> dict[str, Any]:
    entry = {"t": 1.0, "kind": "log", "rank": 0, "stream": "out", "offset": 0, "text": text}
    return {"entries": [{"seq": n, **entry} for n in numbers]}


def follow(talk) -> tuple[ItemStream, int]:
    """Return a stream of a run's entries, and the number of its request."""
    conversation, channel = talk
    stream = conversation.stream("follow", {"run": "r", "after": 0})
    return stream, channel.next("follow")["id"]


def test_answers_may_come_in_any_order(talk) -> None:
    conversation, channel = talk
    first = in_thread(lambda: conversation.ask("one", 5, {}).body)
    one = channel.next("one")
    second = in_thread(lambda: conversation.ask("two", 5, {"a": 1}).body)
    two = channel.next("two")
    assert two["a"] == 1
    channel.answer(two["id"], result={"n": 2})
    assert second() == {"n": 2}
    channel.answer(one["id"], result={"n": 1})
    assert first() == {"n": 1}


def test_an_answer_that_comes_too_late_is_passed_over(talk) -> None:
    conversation, channel = talk
    with pytest.raises(RequestError) as caught:
        conversation.ask("slow", 0.05, {})
    assert caught.value.code == "timed_out"
    channel.answer(channel.next("slow")["id"], result={})
    again = in_thread(lambda: conversation.ask("one", 5, {}).body)
    channel.answer(channel.next("one")["id"], result={"ok": True})
    assert again() == {"ok": True}
    assert conversation.ended is None


def test_what_came_before_an_error_is_not_lost(talk) -> None:
    channel = talk[1]
    stream, number = follow(talk)
    channel.answer(number, item=entries(1))
    channel.answer(number, error={"code": "no_such_run", "message": "gone"})
    assert next(stream).entries[0].seq == 1
    with pytest.raises(RequestError):
        next(stream)


def test_a_slow_consumer_makes_only_its_node_wait(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ITEMS", 10)
    conversation, channel = talk
    stream, number = follow(talk)
    for n in range(1, 21):
        channel.answer(number, item=entries(n))
    cancelled = channel.next("cancel")
    assert cancelled["target"] == number
    # Another caller is answered although nobody takes the stream's items.
    other = in_thread(lambda: conversation.ask("one", 5, {}).body)
    channel.answer(channel.next("one")["id"], result={})
    assert other() == {}
    channel.answer(number, result={"cancelled": True})
    seen = [stream.take(5).entries[0].seq for _ in range(11)]
    assert seen == list(range(1, 12))
    rest = in_thread(lambda: [item.entries[0].seq for item in stream])
    again = channel.next("follow")
    assert (again["run"], again["after"]) == ("r", 11)
    for n in range(12, 21):
        channel.answer(again["id"], item=entries(n))
    channel.answer(again["id"], result={"last": 20})
    assert rest() == list(range(12, 21))
    assert stream.result == {"last": 20}


def test_a_stream_ended_while_paused_is_read_whole(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ITEMS", 2)
    channel = talk[1]
    stream, number = follow(talk)
    for n in range(1, 6):
        channel.answer(number, item=entries(n))
    assert channel.next("cancel")["target"] == number  # before anybody takes one
    channel.answer(number, result={"last": 5})
    rest = in_thread(lambda: [item.entries[0].seq for item in stream])
    again = channel.next("follow")
    assert again["after"] == 3
    channel.answer(again["id"], item=entries(4, 5))
    channel.answer(again["id"], result={"last": 5})
    assert rest() == [1, 2, 3, 4]


def test_a_stream_is_paused_at_too_many_bytes(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_BYTES", 1000)
    stream, number = follow(talk)
    talk[1].answer(number, item=entries(1, text="x" * 2000))
    assert talk[1].next("cancel")["target"] == number
    stream.close()


def test_samples_not_taken_are_dropped_and_counted(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ITEMS", 3)
    conversation, channel = talk
    stream = conversation.stream("watch", {"interval": 1})
    number = channel.next("watch")["id"]
    for n in range(10):
        channel.answer(number, item={"t": float(n)})
    channel.answer(number, result={"cancelled": True})
    ping = in_thread(lambda: conversation.ask("one", 5, {}).body)
    channel.answer(channel.next("one")["id"], result={})
    ping()
    assert [item.t for item in stream] == [7.0, 8.0, 9.0]


def test_closing_a_stream_cancels_it_and_wakes_its_consumer(talk) -> None:
    conversation, channel = talk
    stream = conversation.stream("watch", {"interval": 1})
    number = channel.next("watch")["id"]
    waiting = in_thread(lambda: list(stream))
    stream.close()
    assert waiting() == []
    assert channel.next("cancel")["target"] == number


def test_a_stream_closed_while_it_resumes_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ITEMS", 0)
    going: set[int] = set()

    def begin(stream: ItemStream) -> None:
        stream.close()  # as another thread may at any moment
        stream.number = 2
        going.add(stream.number)

    def cancel(stream: ItemStream, *, forget: bool) -> None:
        going.discard(stream.number)

    stream = ItemStream("follow", {"run": "r"}, begin, cancel)
    stream.number = 1
    stream.offer(check_item("follow", entries(1)), 10)
    stream.answered({"cancelled": True})
    assert len(list(stream)) == 1
    assert going == set()


@pytest.mark.parametrize(
    "line", [b"hello\n", b'{"id": 1, "item": {"entries": {}}}\n', b"x" * (5 << 20)]
)
def test_a_node_that_breaks_the_protocol_is_an_agent_error(talk, line: bytes) -> None:
    conversation, channel = talk
    stream = conversation.stream("follow", {"run": "r", "after": 0})
    channel.raw(line)
    with pytest.raises(AgentError):
        next(stream)
    with pytest.raises(AgentError):
        conversation.ask("one", 5, {})
    assert channel.closed.wait(5)
    assert isinstance(conversation.ended, AgentError)


def test_why_an_agent_turns_us_away_is_told(talk) -> None:
    conversation, channel = talk
    asking = in_thread(lambda: conversation.ask("hello", 5, {}))
    channel.next("hello")
    channel.answer(0, error={"code": "too_many", "message": "too many", "hint": "close some"})
    told = asking()
    assert isinstance(told, AgentError)
    assert (told.message, told.hint) == ("n: too many", "close some")
    assert conversation.ended is told


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of a conversation; the reader looks at it all the while."""
    monkeypatch.setattr(talking, "TICK_SECONDS", 0.01)
    return [0.0]


def test_a_silent_node_is_asked_and_then_lost(now: list[float]) -> None:
    channel = ScriptedChannel()
    conversation = Conversation("n", channel, b"", clock=lambda: now[0])
    now[0] = talking.PING_SECONDS
    channel.next("ping")
    assert conversation.ended is None
    now[0] = talking.LOST_SECONDS + 1
    assert channel.closed.wait(5)
    conversation.close()
    assert isinstance(conversation.ended, LinkLostError)
    assert "has not answered" in conversation.ended.message


def test_a_sound_from_the_node_keeps_it(now: list[float]) -> None:
    channel = ScriptedChannel()
    conversation = Conversation("n", channel, b"", clock=lambda: now[0])
    for _ in range(5):
        now[0] += talking.LOST_SECONDS - 1
        channel.answer(channel.next("ping")["id"], result={"time_ns": 1, "monotonic_ns": 1})
        wait_until("it is heard", lambda: conversation._heard == now[0])
    assert conversation.ended is None
    conversation.close()


def test_what_a_node_said_while_the_reader_was_held_up_keeps_it(now: list[float]) -> None:
    channel = ScriptedChannel()
    conversation = Conversation("n", channel, b"", clock=lambda: now[0])
    with conversation._reading:
        now[0] = talking.LOST_SECONDS + 1
        channel.answer(1, result={})
    wait_until("it is heard", lambda: conversation._heard == now[0])
    conversation.look()
    assert conversation.ended is None
    conversation.close()


def test_why_a_channel_ended_is_asked_of_it_and_holds_up_nobody() -> None:
    asked, told = threading.Event(), threading.Event()

    class Slow(ScriptedChannel):
        """Takes its time to say why it ended, as one of OpenSSH does that asks its master."""

        def recv(self, max_bytes: int, timeout: float) -> bytes:
            asked.set()
            assert told.wait(5)
            raise LinkLostError("the connection ended")

    slow, other = Slow(), ScriptedChannel()
    ending, going = Conversation("n", slow, b""), Conversation("m", other, b"")
    slow.cut()
    assert asked.wait(5)
    answer = in_thread(lambda: going.ask("one", 5, {}).body)
    other.answer(other.next("one")["id"], result={"still": "here"})
    assert answer() == {"still": "here"}
    assert ending.ended is None
    told.set()
    assert slow.closed.wait(5)
    assert ending.ended.message == "the connection ended"
    for each in (ending, going):
        each.close()


def test_a_node_that_takes_nothing_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ITEMS", 0)
    taken = threading.Event()

    class Full(ScriptedChannel):
        def send(self, data: bytes, timeout: float) -> None:
            if b'"cancel"' in data:
                assert taken.wait(5)
            super().send(data, timeout)

    full, other = Full(), ScriptedChannel()
    stuck, going = Conversation("n", full, b""), Conversation("m", other, b"")
    stream = stuck.stream("follow", {"run": "r", "after": 0})
    full.answer(full.next("follow")["id"], item=entries(1))
    assert stream.take(5).entries[0].seq == 1
    answer = in_thread(lambda: going.ask("one", 5, {}).body)
    other.answer(other.next("one")["id"], result={})
    assert answer() == {}
    taken.set()
    full.next("cancel")
    for each in (stuck, going):
        each.close()


def test_where_no_thread_starts_everybody_is_told_all_the_same(
    now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scarce(threading.Thread):
        def start(self) -> None:
            if self.name in ("post:n", "end:n"):
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(talking.threading, "Thread", Scarce)
    channel, other = ScriptedChannel(), ScriptedChannel()
    silent = Conversation("n", channel, b"", clock=lambda: now[0])
    heard = Conversation("m", other, b"")
    now[0] += talking.PING_SECONDS
    silent.look()  # asks it, and has no thread to do so
    asked = in_thread(lambda: silent.ask("hello", 5.0, {}))
    channel.next("hello")
    channel.next("ping")  # which goes with what is said next
    channel.cut()
    assert isinstance(asked(), LinkLostError)
    answered = in_thread(lambda: heard.ask("hello", 5.0, {}).body)
    other.answer(other.next("hello")["id"], result={"cancelled": True})
    assert answered() == {"cancelled": True}, "the reader goes on"
    silent.close()
    heard.close()


def test_one_thread_reads_what_all_nodes_send() -> None:
    channels = [ScriptedChannel() for _ in range(20)]
    talks = [Conversation(f"n{place}", channel, b"") for place, channel in enumerate(channels)]
    heard: list[tuple[int, str]] = []
    for place, (channel, conversation) in enumerate(zip(channels, talks, strict=True)):
        stream = conversation.stream("watch", {})

        def listen(place: int = place, stream: ItemStream = stream) -> None:
            with contextlib.suppress(NodeError):
                if stream.take(0.0) is not None:
                    heard.append((place, threading.current_thread().name))

        stream.listen(listen)
        channel.answer(channel.next("watch")["id"], item={"t": 1.0})
    wait_until("all are heard", lambda: len(heard) == len(talks))
    assert {place for place, _ in heard} == set(range(20))
    assert {name for _, name in heard} == {"link reader"}
    for each in talks:
        each.close()


def test_closing_tells_everybody_and_joins(talk) -> None:
    conversation, channel = talk
    waiting = in_thread(lambda: conversation.ask("one", 30, {}))
    channel.next("one")
    conversation.close()
    assert isinstance(waiting(), LinkLostError)
    assert not any(thread.name == "link reader" for thread in threading.enumerate())


@pytest.mark.parametrize("noticed", [LinkLostError("takes nothing"), TimeoutError()])
def test_who_is_sending_when_it_ends_hears_why_it_ended(noticed: Exception) -> None:
    sending = threading.Event()

    class Stuffed(ScriptedChannel):
        """Takes nothing, and is closed while somebody tries."""

        def send(self, data: bytes, timeout: float) -> None:
            sending.set()
            assert self.closed.wait(5)
            raise noticed

    channel = Stuffed()
    conversation = Conversation("n", channel, b"")
    asked = in_thread(lambda: conversation.ask("ping", 5, {}))
    assert sending.wait(5)
    channel.raw(b"no protocol\n")
    error = asked()
    assert isinstance(error, AgentError)
    assert error is conversation.ended
    conversation.close()


def test_a_stream_is_paused_when_all_hold_too_much(talk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_ALL_BYTES", 3000)
    channel = talk[1]
    held = streams._held.bytes
    one, first = follow(talk)
    channel.answer(first, item=entries(1, text="x" * 4000))
    other, number = follow(talk)
    for n in range(1, 6):
        channel.answer(number, item=entries(n))
    assert channel.next("cancel")["target"] == number
    one.close()
    other.close()
    assert streams._held.bytes == held


@pytest.mark.parametrize(("many", "rests"), [(1, True), (64, False)])
def test_what_many_nodes_say_is_read_together_and_a_few_are_answered_at_once(
    many: int, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    monkeypatch.setattr(talking, "MANY", many)
    monkeypatch.setattr(talking.time, "sleep", rested.append)
    channels = [ScriptedChannel(), ScriptedChannel()]
    talks = [Conversation("n", channel, b"") for channel in channels]
    answer = in_thread(lambda: talks[0].ask("one", 5, {}).body)
    channels[0].answer(channels[0].next("one")["id"], result={})
    assert answer() == {}
    assert (talking.REST_SECONDS in rested) == rests
    for each in talks:
        each.close()
