"""One node: its connection, kept, and the conversation with its agent."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import msgspec

from distconsole.errors import AgentError, LinkLostError, is_out_of_threads, thread_error
from distconsole.model.cluster import Host
from distconsole.rpc import wire
from distconsole.rpc.bootstrap import open_bridge
from distconsole.rpc.conversation import Conversation
from distconsole.rpc.frames import Hello, Pong
from distconsole.rpc.pack import agent_pack
from distconsole.rpc.stream import ItemStream
from distconsole.ssh.transport import Connection, Transport

REQUEST_SECONDS = 30.0
HELLO_SECONDS = 15.0
OFFSET_PINGS = 8


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """A node's UNIX time less ours; the error is at most half of the exchange's ``rtt_seconds``."""

    seconds: float
    rtt_seconds: float


class NodeLink:
    """A node for any thread to ask, by a ``connection`` that the link closes, or a new one."""

    def __init__(
        self, host: Host, transport: Transport, connection: Connection | None = None
    ) -> None:
        self.host = host
        self._transport = transport
        self._connecting = threading.Lock()
        self._closed = threading.Event()
        self._connection = connection
        self._conversation: Conversation | None = None
        self._hello: Hello | None = None
        self._home = ""
        self.pushed = False

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def address(self) -> str:
        """The address that the connection reached; empty if none is known, as for this machine."""
        connection = self._connection
        return "" if connection is None else connection.reached_at

    @property
    def logged_in(self) -> bool:
        """True once the login has succeeded, with or without an agent there."""
        return self._connection is not None

    @property
    def connected(self) -> bool:
        conversation = self._conversation
        return conversation is not None and conversation.ended is None

    @property
    def hello(self) -> Hello:
        """The agent's facts of the node at the last connection; LinkLostError if there was none."""
        if self._hello is None:
            raise LinkLostError(f"{self.name} is not connected")
        return self._hello

    @property
    def python(self) -> str:
        """The interpreter of the node's ranks and checks: the given one, else the session's."""
        return self.interpreter(self.host.python)

    def interpreter(self, python: str | None) -> str:
        """Return the path on the node of ``python``, which may begin with ``~/``; None takes the session's."""
        if python is not None and python.startswith("~/") and self._home:
            return f"{self._home}{python[1:]}"
        return python or ("python3" if self.host.container else self.hello.python)

    def connect(self) -> None:
        """Reach the node, start its bridge and shake hands; does nothing on a link that stands.

        An SSH connection that still stands is used again: then only the agent or its bridge had ended.

        Raises NodeError: one of its kinds.
        """
        try:
            self._connect()
        except RuntimeError as error:
            if not is_out_of_threads(error):
                raise
            raise thread_error(self.name) from None

    def _connect(self) -> None:
        with self._connecting:
            if self._closed.is_set():
                raise self._closed_error()
            if self.connected:
                return
            if self._conversation is not None:
                self._conversation.close()
                self._conversation = None
            if self._connection is not None and not self._connection.alive:
                self._connection.close()
                self._connection = None
            fresh = self._connection is None
            try:
                self._converse()
            except LinkLostError:
                if fresh:
                    raise
                self._drop_connection()
                self._converse()

    def request(
        self, op: str, timeout: float = REQUEST_SECONDS, **arguments: Any
    ) -> dict[str, Any]:
        """Return the agent's answer, checked and cleaned.

        Raises RequestError if the agent refuses (``code`` is the reason) or does not answer in time,
        LinkLostError or AgentError if the link is lost or breaks the protocol.
        """
        body = self._talk().ask(op, timeout, arguments).body
        assert body is not None
        return body

    def stream(self, op: str, **arguments: Any) -> ItemStream:
        """Return the checked items that answer ``op``; close it to cancel; raises LinkLostError, AgentError."""
        return self._talk().stream(op, arguments)

    def clock_offset(self, pings: int = OFFSET_PINGS) -> ClockOffset:
        """Compare clocks: the exchange with the least round trip of ``pings`` (RFC 5905, section 8)."""
        return min((self._offset_once() for _ in range(pings)), key=lambda one: one.rtt_seconds)

    def close(self) -> None:
        """Leave the node; its agent and its runs stay. Joins the reader; may be called repeatedly."""
        self._closed.set()
        conversation, connection = self._conversation, self._connection
        if conversation is not None:
            conversation.close()
        if connection is not None:
            connection.close()

    def _converse(self) -> None:
        if self._connection is None:
            self._connection = self._transport.connect(self.host)
        connection = self._connection
        conversation: Conversation | None = None
        try:
            conversation, hello = self._begin(connection)
            if _is_damaged(hello):
                conversation.close()
                conversation, hello = self._begin(connection, closely=True)
        except BaseException:
            if conversation is not None:
                conversation.close()
            self._drop_connection()
            raise
        # Before ``_closed`` is looked at, so that ``close`` finds the conversation.
        self._hello, self._conversation = hello, conversation
        ended = self._closed_error() if self._closed.is_set() else conversation.ended
        if ended is not None:
            conversation.close()
            self._drop_connection()
            raise ended

    def _begin(
        self, connection: Connection, *, closely: bool = False
    ) -> tuple[Conversation, Hello]:
        if self._closed.is_set():  # the caller stopped waiting for the node
            raise self._closed_error()
        bridge = open_bridge(connection, self.host, agent_pack(), closely=closely)
        conversation = Conversation(self.name, bridge.channel, bridge.early)
        try:
            hello = self._shake_hands(conversation, closely=closely)
        except BaseException:
            conversation.close()
            raise
        self.pushed |= bridge.pushed
        self._home = bridge.home or self._home
        return conversation, msgspec.structs.replace(hello, python=bridge.python)

    def _shake_hands(self, conversation: Conversation, *, closely: bool) -> Hello:
        said = conversation.ask("hello", HELLO_SECONDS, {"protocol": wire.PROTOCOL_VERSION})
        hello = wire.decode_as(said.body, Hello)
        if hello.protocol != wire.PROTOCOL_VERSION:
            raise AgentError(
                f"{self.name}: the agent speaks protocol {hello.protocol}, "
                f"this console {wire.PROTOCOL_VERSION}"
            )
        if closely and _is_damaged(hello):
            raise AgentError(
                f"{self.name}: the agent's file is not what was brought, and cannot be replaced",
                f"on it: rm ~/.cache/distconsole/{agent_pack().name}",
            )
        return hello

    def _closed_error(self) -> LinkLostError:
        return LinkLostError(f"the link to {self.name} was closed")

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _talk(self) -> Conversation:
        conversation = self._conversation
        if conversation is None:
            raise LinkLostError(f"{self.name} is not connected")
        if conversation.ended is not None:
            raise conversation.ended
        return conversation

    def _offset_once(self) -> ClockOffset:
        reply = self._talk().ask("ping", REQUEST_SECONDS, {})
        node_ns = wire.decode_as(reply.body, Pong).time_ns
        rtt = (reply.received_ns - reply.sent_ns) / 1e9
        offset = ((node_ns - reply.sent_ns) + (node_ns - reply.received_ns)) / 2e9
        return ClockOffset(offset, max(0.0, rtt))


def _is_damaged(hello: Hello) -> bool:
    """Return True if the agent's file has changed since it was brought: it runs, but reads parts of it only later."""
    return hello.archive_sha256 not in (None, agent_pack().sha256)
