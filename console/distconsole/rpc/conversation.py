"""Requests and answers over one channel: one reader thread, any number of callers.

The reader never waits for a consumer. When the consumer of a ``follow`` falls behind, its stream is
cancelled at the agent and asked for again from the last entry taken once the consumer has caught up;
meanwhile the journal waits on the node. Streams without a cursor (``watch``) lose their oldest items.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, structs

from distconsole.errors import AgentEndedError, AgentError, LinkLostError, NodeError, RequestError
from distconsole.rpc import wire
from distconsole.rpc.frames import Answer
from distconsole.rpc.stream import Stream
from distconsole.rpc.turns import TURNS
from distconsole.ssh.transport import Channel, Clock

PING_SECONDS = 3.0
"""A node that was silent so long is asked whether it is there."""

LOST_SECONDS = 12.0
"""A node that was silent so long, asked or not, is lost."""

SEND_SECONDS = 20.0

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
    """What is said on a channel whose bridge has spoken its first line; ``early`` is what came with it."""

    def __init__(
        self, name: str, channel: Channel, early: bytes, *, clock: Clock = time.monotonic
    ) -> None:
        self.name = name
        self._channel = channel
        self._early = early
        self._clock = clock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Reply | Stream] = {}
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self.ended: NodeError | None = None
        """Why it is over, or None."""
        self._reader = threading.Thread(target=self._read, name=f"link:{name}", daemon=True)
        self._reader.start()

    def ask(self, op: str, timeout: float, arguments: dict[str, Any]) -> Reply:
        """Ask and wait for the answer, which is checked.

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

    def stream(self, op: str, arguments: dict[str, Any]) -> Stream:
        """Ask for a stream, whose items are checked as they come; raises LinkLostError or AgentError."""
        stream = Stream(op, arguments, self._begin, self._cancel)
        self._begin(stream)
        return stream

    def close(self) -> None:
        """End it quietly and wait for the reader."""
        self._channel.close()
        if self._reader.is_alive() and self._reader is not threading.current_thread():
            self._reader.join()
        self._finish(LinkLostError(f"the link to {self.name} was closed"))

    def _begin(self, stream: Stream) -> None:
        """Ask for ``stream`` (again), from where it stands."""
        stream.number = self._enter(stream)
        self._send(wire.encode_request(stream.number, stream.op, stream.arguments))

    def _cancel(self, stream: Stream, *, forget: bool) -> None:
        """Ask the agent to end a stream; ``forget`` it at once if nobody waits for its end."""
        if forget:
            self._leave(stream.number)
        if self.ended is None:
            self._post(
                wire.encode_request(next(self._numbers), "cancel", {"target": stream.number})
            )

    def _enter(self, waiting: Reply | Stream) -> int:
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
        """Send without waiting for another sender, who then sends it for us: the reader may not wait."""
        self._outbox.append(line)
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
                # It says more than that the channel was closed under our hands.
                raise self.ended from None
            if isinstance(failure, LinkLostError):
                raise
            error = LinkLostError(f"{self.name} takes nothing we send for {SEND_SECONDS:g} s")
            self._channel.close()
            raise error from None

    def _read(self) -> None:
        held, searched = bytearray(self._early), 0
        try:
            while True:
                while (end := held.find(b"\n", searched)) >= 0:
                    line = bytes(held[:end])
                    del held[: end + 1]
                    searched = 0
                    self._dispatch(line)
                searched = len(held)
                if searched > wire.MAX_LINE_BYTES:
                    raise AgentError(  # noqa: TRY301 - one place ends it
                        f"{self.name} sent a line longer than {wire.MAX_LINE_BYTES} bytes"
                    )
                data = self._receive()
                if not data:
                    raise self._bridge_ended()  # noqa: TRY301 - one place ends it
                held += data
        except NodeError as error:
            self._finish(error)
        except Exception as error:  # noqa: BLE001 - the one guard: a reader that dies must say so
            text = f"{self.name}: reading failed: {error!r}"
            self._finish(AgentError(text, "please report this"))
        finally:
            # The reason is known before it closes, for those who notice by that.
            self._channel.close()

    def _receive(self) -> bytes:
        heard = self._clock()
        while True:
            try:
                return self._channel.recv(65536, PING_SECONDS)
            except TimeoutError:
                if self._clock() - heard > LOST_SECONDS:
                    raise LinkLostError(
                        f"{self.name} has not answered for {LOST_SECONDS:g} s",
                        "is the node up, and the network to it?",
                    ) from None
                # Nobody waits for this answer: any sound of the node's is one.
                self._post(wire.encode_request(next(self._numbers), "ping", {}))

    def _bridge_ended(self) -> AgentEndedError:
        said = self._channel.stderr_tail().strip().splitlines()
        return AgentEndedError(
            f"the agent's bridge on {self.name} ended" + (f": {said[-1][:300]}" if said else "")
        )

    def _dispatch(self, line: bytes) -> None:
        received_ns = time.time_ns()
        answer, waiting = TURNS.take(lambda: self._check(line))
        match waiting:
            case Reply():
                self._reply(waiting, answer, received_ns)
            case Stream():
                self._feed(waiting, answer, len(line))
            case None:
                return

    def _check(self, line: bytes) -> tuple[Answer, Reply | Stream | None]:
        """Return what a line says, checked and cleaned, and who waits for it; an item that nobody wants is empty."""
        answer = wire.decode_answer(line)
        if answer.id == NOBODY and isinstance(answer.error, dict):
            # It answers no request: it is why the agent leaves us.
            refused = wire.refusal(answer.error)
            raise AgentError(f"{self.name}: {refused.message}", refused.hint)
        with self._lock:
            waiting = self._waiting.get(answer.id)
        # An answer that nobody waits for any more was cancelled or came too late.
        if waiting is None:
            return answer, None
        if isinstance(answer.result, dict):
            result = wire.check_result(waiting.op, answer.result)
            return structs.replace(answer, result=result), waiting
        if isinstance(answer.item, dict) and isinstance(waiting, Stream):
            wanted = waiting.wants_items
            if not wanted:
                return structs.replace(answer, item=UNSET), waiting
            item = wire.check_item(waiting.op, answer.item, plain=wire.is_plain(line))
            return structs.replace(answer, item=item), waiting
        return answer, waiting

    def _reply(self, reply: Reply, answer: Answer, received_ns: int) -> None:
        if isinstance(answer.result, dict):
            reply.body = answer.result
        elif isinstance(answer.error, dict):
            reply.error = wire.refusal(answer.error)
        else:
            raise AgentError(f"{self.name} answers '{reply.op}' with an item")
        reply.received_ns = received_ns
        reply.answered.set()

    def _feed(self, stream: Stream, answer: Answer, size: int) -> None:
        if isinstance(answer.item, dict):
            stream.offer(answer.item, size)
            return
        if not isinstance(answer.result, dict) and not isinstance(answer.error, dict):
            stream.discard()
            return
        self._leave(answer.id)
        if isinstance(answer.result, dict):
            stream.answered(answer.result)
        elif isinstance(answer.error, dict):
            stream.fail(wire.refusal(answer.error))

    def _finish(self, error: NodeError) -> None:
        """Tell everybody who waits why it is over."""
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
