"""One bridge's connection: reads its requests, runs them side by side, sends their answers.

The requests of one connection at a time are bounded; an invalid line ends it.
"""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable

from distconsole_agent.contract.limits import MAX_REQUESTS, SEND_SECONDS
from distconsole_agent.contract.protocol import (
    MAX_LINE_BYTES,
    ErrorCode,
    ProtocolError,
    Values,
    decode,
    encode,
)
from distconsole_agent.contract.refusal import Refusal, bad_request, storage
from distconsole_agent.contract.requests import AgentRequest, read_request
from distconsole_agent.system import unix
from distconsole_agent.system.own_log import complain
from distconsole_agent.system.threads import begin_thread

Answer = Callable[[AgentRequest, "PendingRequest"], Values]
"""Returns the result of a request, or raises a ``Refusal``."""

IMMEDIATE = ("ping",)
"""Operations that are answered at once, in the thread that reads."""

RECEIVE_BYTES = 65536

TOO_MANY_CONSOLES = Refusal(
    ErrorCode.TOO_MANY, "too many consoles are connected to this node", "close some of them"
)
TOO_MANY_REQUESTS = Refusal(
    ErrorCode.TOO_MANY, "too many requests at a time", "wait for answers, or cancel streams"
)
NO_DESCRIPTORS = Refusal(
    ErrorCode.TOO_MANY,
    "this node's agent has too few descriptors left",
    "raise its hard limit (ulimit -Hn) and start it again, or close some consoles",
)
NO_THREADS = Refusal(
    ErrorCode.TOO_MANY,
    "this node starts no more threads for this user",
    "end some of your processes there, or raise ulimit -u, -v and -d; in a container, its limit of pids",
)


class ConsoleConnection:
    """A connection that was accepted; ``threads`` are shared with all others."""

    def __init__(
        self,
        sock: socket.socket,
        answer: Answer,
        threads: threading.BoundedSemaphore,
        over: Callable[[ConsoleConnection], None],
    ) -> None:
        self._sock = sock
        self._answer_to = answer
        self._threads = threads
        self._over = over
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._asked: dict[int, PendingRequest] = {}
        self.environment = unix.peer_environment(sock)
        """The bridge's environment: runs of this console inherit it, not the agent's own,
        which may be that of another session hours ago. None if unknown."""

    def begin(self) -> None:
        self._sock.settimeout(None)
        # A console that reads nothing for this long is gone; SO_SNDTIMEO leaves reading unbounded.
        timeval = struct.pack("ll", int(SEND_SECONDS), 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        begin_thread(self._read_all)

    def turn_away(self, refusal: Refusal) -> None:
        self._sock.settimeout(0)
        self._refuse(0, refusal)
        self._sock.close()

    def close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def send(self, message: Values) -> None:
        """Send one message, as soon as the socket takes it. Raises OSError or ProtocolError."""
        self.send_line(encode(message))

    def send_line(self, line: bytes) -> None:
        """Send one line that is encoded already; as ``send``."""
        with self._sending:
            self._sock.sendall(line)

    def _read_all(self) -> None:
        try:
            self._read_lines()
        except OSError:
            pass
        except ProtocolError as error:
            self._refuse(0, bad_request(str(error)))
        finally:
            with self._lock:
                left = list(self._asked.values())
            for asked in left:
                asked.cancel()
            self.close()
            self._over(self)

    def _read_lines(self) -> None:
        held = bytearray()
        while chunk := self._sock.recv(RECEIVE_BYTES):
            searched = len(held)
            held += chunk
            while (end := held.find(b"\n", searched)) >= 0:
                line = bytes(held[: end + 1])
                del held[: end + 1]
                searched = 0
                self._take(decode(line))
            if len(held) > MAX_LINE_BYTES:
                raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")

    def _take(self, message: Values) -> None:
        number = message.get("id")
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 63:
            raise ProtocolError("a request without a number as its id")
        asked = PendingRequest(self, number)
        try:
            request = read_request(AgentRequest, message)
            if request.op == "cancel":
                with self._lock:
                    target = self._asked.get(request.target)
                if target is not None:
                    target.cancel()
                self.send({"id": number, "result": {}})
            elif request.op in IMMEDIATE:
                self._answer(asked, request)
            else:
                self._begin_answer(asked, request)
        except Refusal as refusal:
            self.send({"id": number, "error": refusal.as_json()})

    def _begin_answer(self, asked: PendingRequest, request: AgentRequest) -> None:
        """Answer a request in a thread of its own. Raises Refusal if there are too many, or no thread is left."""
        with self._lock:
            if asked.number in self._asked:
                raise bad_request(f"request {asked.number} is still being answered")
            if len(self._asked) >= MAX_REQUESTS or not self._threads.acquire(blocking=False):
                raise TOO_MANY_REQUESTS
            self._asked[asked.number] = asked
        try:
            begin_thread(self._answer_aside, asked, request)
        except RuntimeError as error:
            self._count_out(asked)
            complain(f"{request.op}: {error}")
            raise NO_THREADS from None

    def _answer_aside(self, asked: PendingRequest, request: AgentRequest) -> None:
        try:
            self._answer(asked, request)
        finally:
            self._count_out(asked)

    def _count_out(self, asked: PendingRequest) -> None:
        with self._lock:
            self._asked.pop(asked.number, None)
        self._threads.release()

    def _answer(self, asked: PendingRequest, request: AgentRequest) -> None:
        try:
            self.send({"id": asked.number, "result": self._answer_to(request, asked)})
        except Refusal as refusal:
            self._refuse(asked.number, refusal)
        except ProtocolError as error:
            self._report(asked, request, error)
        except (ConnectionError, BlockingIOError):
            # The console has gone, or does not read.
            self.close()
        except OSError as error:
            failed = storage(f"{error.filename or 'the node folder'}: {error.strerror or error}")
            self._refuse(asked.number, failed)
        # The one guard: a request that finds a mistake of ours costs itself, not the agent.
        except Exception as error:  # noqa: BLE001
            self._report(asked, request, error)

    def _report(self, asked: PendingRequest, request: AgentRequest, error: Exception) -> None:
        text = f"{request.op}: {type(error).__name__}: {error}"
        complain(text)
        hint = "see the agent's log on that node"
        self._refuse(asked.number, Refusal(ErrorCode.INTERNAL, text[:500], hint))

    def _refuse(self, number: int, refusal: Refusal) -> None:
        try:
            self.send({"id": number, "error": refusal.as_json()})
        except (OSError, ProtocolError):
            self.close()


class PendingRequest:
    """A request without its answer yet; a stream sends its items through it.

    Sending blocks while the socket is full, and raises OSError when the connection is gone.
    ``environment`` is that of the asking console's session on this node; None if unknown.
    """

    def __init__(self, connection: ConsoleConnection, number: int) -> None:
        self.number = number
        self.cancelled = threading.Event()
        self.environment = connection.environment
        self._connection = connection
        self._prefix = b'{"id":%d,"item":{"entries":[' % number
        self._wake: Callable[[], None] | None = None

    def send_item(self, item: Values) -> None:
        self._connection.send({"id": self.number, "item": item})

    def send_entries(self, entries: list[bytes], journal_id: str) -> None:
        """Send entries that are JSON already, and their writer, as one item."""
        writer = json.dumps(journal_id).encode("ascii")
        line = self._prefix + b",".join(entries) + b'],"journal":' + writer + b"}}\n"
        self._connection.send_line(line)

    def on_cancel(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called when it is cancelled or its connection ends."""
        self._wake = wake
        if self.cancelled.is_set():
            wake()

    def cancel(self) -> None:
        """End a stream; anything else goes on to its answer."""
        self.cancelled.set()
        if self._wake is not None:
            self._wake()
