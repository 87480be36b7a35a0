"""Requests and answers over one channel, which ``LinkReader`` reads; any number of callers.

The reader never waits for a consumer. When the consumer of a ``follow`` falls behind, its stream is
cancelled at the agent and asked for again from the last entry taken once the consumer has caught up;
meanwhile the journal waits on the node. Streams without a cursor (``watch``) lose their oldest items.
"""

from __future__ import annotations

import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distconsole.errors import AgentEndedError, AgentError, LinkLostError, NodeError, RequestError
from distconsole.rpc import wire
from distconsole.rpc.frames import Answer
from distconsole.rpc.stream import ItemStream
from distconsole.ssh.transport import Channel, Clock

PING_SECONDS = 3.0
"""A node that was silent for this long gets a ping."""

LOST_SECONDS = 12.0
"""A node that was silent for this long, asked or not, is lost."""

SEND_SECONDS = 20.0

READ_BYTES = 64 * 1024
"""So much is read of a node before it is the next one's turn."""

TICK_SECONDS = 0.5
"""Seconds between two checks of each for too long a silence."""

MANY, REST_SECONDS = 64, 0.005
"""From this many sources on there is always news: read together, they wake the consumer once and not for each."""

NOBODY = 0
"""The number that no request has."""


@dataclass(slots=True)
class Reply:
    """The answer to one request, and when it was asked and answered (UNIX ns, console's clock)."""

    op: str
    sent_ns: int = 0
    received_ns: int = 0
    body: dict[str, Any] | None = None
    error: NodeError | None = None
    answered: threading.Event = field(default_factory=threading.Event)


class Conversation:
    """Messages on a channel after its bridge's first line; ``early`` is the input behind that line."""

    def __init__(
        self, name: str, channel: Channel, early: bytes, *, clock: Clock = time.monotonic
    ) -> None:
        self.name = name
        self._channel = channel
        self._early = early
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Reply | ItemStream] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self.ended: NodeError | None = None
        """Why it is over, or None."""
        self._reading = threading.RLock()
        self._held, self._searched = bytearray(), 0
        """Bytes of an unfinished line, and how far it is known to have no end."""
        self._heard = self._asked = clock()
        self._ending: threading.Thread | None = None
        """Reports the end to all waiting callers; its reason may take a while to find out."""
        self._closed = False
        if early:
            self._read(lambda: early)
        if not self._over:
            READER.add(self)

    def ask(self, op: str, timeout: float, arguments: dict[str, Any]) -> Reply:
        """Send a request and return its checked answer.

        Raises RequestError if the agent refuses, or does not answer in ``timeout`` seconds,
        LinkLostError or AgentError if the conversation ends first.
        """
        reply = Reply(op)
        number = self._enter(reply)
        try:
            line = wire.encode_request(number, op, arguments)
            reply.sent_ns = time.time_ns()
            self._send(line)
            if not reply.answered.wait(timeout):
                raise RequestError(
                    f"{self.name} did not answer '{op}' in {timeout:g} s", code="timed_out"
                )
        finally:
            self._leave(number)
        if reply.error is not None:
            raise reply.error
        return reply

    def stream(self, op: str, arguments: dict[str, Any]) -> ItemStream:
        """Ask for a stream; its items are checked as they come; raises LinkLostError or AgentError."""
        stream = ItemStream(op, arguments, self._begin_again, self._cancel)
        stream.number = self._enter(stream)
        self._send(wire.encode_request(stream.number, op, arguments))
        return stream

    def close(self) -> None:
        """End it quietly; nothing of it is read any more."""
        READER.remove(self)
        with self._reading:
            self._closed = True
        self._channel.close()
        ending = self._ending
        if ending is not None and ending.ident and ending is not threading.current_thread():
            ending.join()
        self._finish(LinkLostError(f"the link to {self.name} was closed"))

    @property
    def waits_on(self) -> tuple[int, ...]:
        """The descriptors that become readable when there is something; they are open until ``LinkReader.remove``."""
        return self._channel.waits_on

    def read(self) -> None:
        """Take what there is; on the reader's thread, like ``look``, it waits for nothing and does not raise."""
        self._read(lambda: self._channel.read_now(READ_BYTES))

    def look(self) -> None:
        """Send a ping to a silent node, and end it if it was silent for too long."""
        now = self._clock()
        if now - max(self._heard, self._asked) < PING_SECONDS:
            return
        self.read()  # lines that came while the reader was held up, or why its descriptors are silent
        if self._over or self._heard >= now:
            return
        if now - self._heard > LOST_SECONDS:
            text = f"{self.name} has not answered for {LOST_SECONDS:g} s"
            self._end(LinkLostError(text, "is the node up, and the network to it?"))
            return
        # The answer itself is not awaited: any line of the node's counts.
        self._asked = now
        self._post(wire.encode_request(next(self._numbers), "ping", {}))

    def _begin_again(self, stream: ItemStream) -> None:
        stream.number = self._enter(stream)
        self._post(wire.encode_request(stream.number, stream.op, stream.arguments))

    def _cancel(self, stream: ItemStream, *, forget: bool) -> None:
        """Ask the agent to end a stream; ``forget`` it at once if no reader waits for its end."""
        if forget:
            self._leave(stream.number)
        if self.ended is None:
            self._post(
                wire.encode_request(next(self._numbers), "cancel", {"target": stream.number})
            )

    def _enter(self, waiting: Reply | ItemStream) -> int:
        number = next(self._numbers)
        with self._lock:
            if self.ended is not None:
                raise self.ended
            self._waiting[number] = waiting
        return number

    def _leave(self, number: int) -> None:
        with self._lock:
            self._waiting.pop(number, None)

    def _send(self, line: bytes) -> None:
        with self._sending:
            self._write(line)
        self._flush()

    def _post(self, line: bytes) -> None:
        """Send without waiting for the node, nor for another sender, who then sends it for us."""
        self._outbox.append(line)
        if not self._sending.locked():
            name = f"post:{self.name}"
            with suppress(RuntimeError):  # without a thread it goes with the next line
                threading.Thread(target=self._flush_quietly, name=name, daemon=True).start()

    def _flush_quietly(self) -> None:
        with suppress(LinkLostError):  # ending the link reports it
            self._flush()

    def _flush(self) -> None:
        while self._outbox and self._sending.acquire(blocking=False):
            try:
                while self._outbox:
                    self._write(self._outbox.popleft())
            finally:
                self._sending.release()

    def _write(self, line: bytes) -> None:
        try:
            self._channel.send(line, SEND_SECONDS)
        except (LinkLostError, TimeoutError) as failure:
            if self.ended is not None:
                # It explains more than the channel's closing.
                raise self.ended from None
            if isinstance(failure, LinkLostError):
                raise
            error = LinkLostError(f"{self.name} takes nothing we send for {SEND_SECONDS:g} s")
            self._end(error)
            raise error from None

    @property
    def _over(self) -> bool:
        return self._closed or self._ending is not None

    def _read(self, receive: Callable[[], bytes | None]) -> None:
        with self._reading:
            if self._over:
                return
            try:
                data = receive()
                if data:
                    self._heard = self._clock()
                    self._take(data)
                elif data is not None:
                    self._end(None)
            except NodeError as error:
                self._end(error)
            except Exception as error:  # noqa: BLE001 - the one guard: a dying reader must report it
                text = f"{self.name}: reading failed: {error!r}"
                self._end(AgentError(text, "please report this"))

    def _take(self, data: bytes) -> None:
        held = self._held
        held += data
        while (end := held.find(b"\n", self._searched)) >= 0:
            line = bytes(held[:end])
            del held[: end + 1]
            self._searched = 0
            self._dispatch(line)
        self._searched = len(held)
        if self._searched > wire.MAX_LINE_BYTES:
            raise AgentError(f"{self.name} sent a line longer than {wire.MAX_LINE_BYTES} bytes")

    def _end(self, error: NodeError | None) -> None:
        """End reading, and report the reason to all waiters; None if the channel has to find it."""
        READER.remove(self)
        with self._reading:
            if self._over:
                return
            self._ending = threading.Thread(
                target=self._tell_end, args=(error,), name=f"end:{self.name}", daemon=True
            )
            try:
                self._ending.start()
            except RuntimeError:
                # This machine has no thread left: the reader reports it, and waits for once.
                self._tell_end(error)

    def _tell_end(self, error: NodeError | None) -> None:
        self._finish(error or self._why_ended())
        # The reason is known before it closes, for those who notice by that.
        self._channel.close()

    def _why_ended(self) -> NodeError:
        try:
            self._channel.recv(1, PING_SECONDS)
        except LinkLostError as error:
            return error
        except TimeoutError:
            pass
        said = self._channel.stderr_tail().strip().splitlines()
        return AgentEndedError(
            f"the agent's bridge on {self.name} ended" + (f": {said[-1][:300]}" if said else "")
        )

    def _dispatch(self, line: bytes) -> None:
        received_ns = time.time_ns()
        number, item = wire.find_item(line)
        # An answer to a cancelled request, or one that came too late.
        waiting = self._waiting.get(number)
        if item and isinstance(waiting, ItemStream):
            if waiting.wants_items:
                told = wire.read_item(waiting.op, item, plain=wire.is_plain(line))
                waiting.offer(told, len(line))
            else:
                waiting.discard()
            return
        answer = wire.decode_answer(line)
        if answer.id == NOBODY and isinstance(answer.error, dict):
            # It answers no request: it is why the agent leaves us.
            refused = wire.refusal(answer.error)
            raise AgentError(f"{self.name}: {refused.message}", refused.hint)
        match self._waiting.get(answer.id):
            case Reply() as reply:
                self._reply(reply, answer, received_ns)
            case ItemStream() as stream:
                self._feed(stream, answer, len(line))
            case None:
                return

    def _reply(self, reply: Reply, answer: Answer, received_ns: int) -> None:
        if isinstance(answer.result, dict):
            reply.body = wire.check_result(reply.op, answer.result)
        elif isinstance(answer.error, dict):
            reply.error = wire.refusal(answer.error)
        else:
            raise AgentError(f"{self.name} answers '{reply.op}' with an item")
        reply.received_ns = received_ns
        reply.answered.set()

    def _feed(self, stream: ItemStream, answer: Answer, size: int) -> None:
        if isinstance(answer.item, dict):  # only Python's parser took it
            if stream.wants_items:
                stream.offer(wire.check_item(stream.op, answer.item), size)
            else:
                stream.discard()
            return
        self._leave(answer.id)
        if isinstance(answer.result, dict):
            stream.answered(wire.check_result(stream.op, answer.result))
        elif isinstance(answer.error, dict):
            stream.fail(wire.refusal(answer.error))

    def _finish(self, error: NodeError) -> None:
        """Wake all waiting callers with the reason of the end."""
        with self._lock:
            if self.ended is None:
                self.ended = error
            waiting, self._waiting = list(self._waiting.values()), {}
        for one in waiting:
            if isinstance(one, Reply):
                one.error = error
                one.answered.set()
            else:
                one.fail(error)


class LinkReader:
    """One thread that reads from all nodes: it waits for all of them at once, and never for one.

    A thread for each node would be woken for each of its lines, and a thousand that wait for the interpreter's
    lock leave no time to its holder. May be used from any thread; its own one is there while anything is to be read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[Conversation, tuple[int, ...]] = {}
        self._selector: selectors.BaseSelector | None = None
        self._thread: threading.Thread | None = None
        self._stop = -1

    def add(self, source: Conversation) -> None:
        with self._lock:
            if self._thread is None:
                self._begin()
            self._sources[source] = ()
        self._watch(source)

    def remove(self, source: Conversation) -> None:
        """Read it no longer; may be called repeatedly, on the reader's thread too."""
        with self._lock:
            self._forget(self._sources.pop(source, ()))
            ended = self._thread
            if self._sources or ended is None:
                return
            self._thread = self._selector = None
            os.close(self._stop)
        if ended is not threading.current_thread():
            ended.join()

    def _begin(self) -> None:
        stopped, self._stop = os.pipe()
        self._selector = selectors.DefaultSelector()
        self._selector.register(stopped, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._run, args=(self._selector, stopped), name="link reader", daemon=True
        )
        self._thread.start()

    def _run(self, selector: selectors.BaseSelector, stopped: int) -> None:
        due = time.monotonic() + TICK_SECONDS
        while True:
            if len(self._sources) > MANY:
                time.sleep(REST_SECONDS)
            for key, _ in selector.select(max(0.0, due - time.monotonic())):
                source: Conversation | None = key.data
                if source is None:
                    selector.close()
                    os.close(stopped)
                    return
                source.read()
                if source.waits_on != self._sources.get(source):
                    self._watch(source)
            if (now := time.monotonic()) >= due:
                due = now + TICK_SECONDS
                with self._lock:
                    sources = list(self._sources)
                for source in sources:
                    source.look()

    def _watch(self, source: Conversation) -> None:
        """Wait on its present descriptors: one of its streams may have ended."""
        with self._lock:
            if source not in self._sources or self._selector is None:
                return
            self._forget(self._sources[source])
            self._sources[source] = source.waits_on
            for descriptor in self._sources[source]:
                # Closed meanwhile: then ``look`` finds out.
                with suppress(OSError, ValueError):
                    self._selector.register(descriptor, selectors.EVENT_READ, source)

    def _forget(self, descriptors: tuple[int, ...]) -> None:
        for descriptor in descriptors:
            with suppress(KeyError, ValueError, OSError):
                if self._selector is not None:
                    self._selector.unregister(descriptor)


READER = LinkReader()
"""That of all links of this program."""
