"""The messages between two shims, over any number of connections.

Numbered messages arrive exactly once and in order; heartbeats and clocks may be lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Callable

from distconsole_agent.contract.runspec import NodeSpec
from distconsole_agent.coordination.channel import LinkError, LinkSession, LinkTimes, Message
from distconsole_agent.supervisor import notes
from distconsole_agent.system.loop import Loop


class NodeConversation:
    """One side of it.

    Args:
        on_message: Called with each new message and with those that are not kept.
        on_cut: Called whenever a connection ended.

    Attributes:
        unlinked_since: Loop time of the last sign of life before the connection was lost; None
            while there is one.
        longest_quiet: Longest silence of the other side since ``begin_quiet``, in seconds, over all
            connections.
    """

    def __init__(
        self,
        loop: Loop,
        times: LinkTimes,
        on_message: Callable[[Message], None],
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        self._loop = loop
        self._times = times
        self._on_message = on_message
        self._on_cut = on_cut
        self._unacknowledged: list[tuple[int, Message]] = []
        self._posted = self._got = 0
        self._session: LinkSession | None = None
        self._resumed = False
        self._heard = self._quiet_from = self.longest_quiet = 0.0
        self.unlinked_since: float | None = loop.clock()

    @property
    def linked(self) -> bool:
        return self._session is not None

    @property
    def settled(self) -> bool:
        """True once the other side has confirmed every kept message."""
        return not self._unacknowledged

    @property
    def quiet_seconds(self) -> float | None:
        """How long the other side has not been heard of; None while there is a connection."""
        since = self.unlinked_since
        return None if since is None else self._loop.clock() - since

    def begin_quiet(self) -> None:
        """Begin ``longest_quiet`` at this moment."""
        self._quiet_from, self.longest_quiet = self._loop.clock(), 0.0

    def attach(self, session: LinkSession) -> None:
        if self._session is not None:
            self._session.close()
        self._session = session
        self._resumed = False
        self._hear()
        self.unlinked_since = None
        self.tell({"op": "resume", "got": self._got})

    def post(self, message: Message) -> None:
        self._posted += 1
        numbered = {**message, "n": self._posted}
        self._unacknowledged.append((self._posted, numbered))
        if self._resumed:
            self.tell(numbered)

    def tell(self, message: Message) -> None:
        """Say something that may be lost with the connection."""
        if self._session is None:
            return
        try:
            self._session.send(message)
        except LinkError:
            self.cut()

    def read(self) -> None:
        if self._session is None:
            return
        try:
            self.receive(self._session.wire.lines())
        except LinkError:
            self.cut()

    def receive(self, lines: list[bytes]) -> None:
        for line in lines:
            if self._session is None:
                return
            try:
                self._take(self._session.open(line))
            except LinkError:
                self.cut()

    def beat(self) -> None:
        """Give a sign of life, and cut a connection without one from the other side."""
        if self._session is None:
            return
        if self._loop.clock() - self._heard > self._times.silent:
            self.cut()
            return
        self._acknowledge()

    def cut(self) -> None:
        """End the connection; the conversation may go on over another one."""
        if self._session is None:
            return
        self._session.close()
        self._session = None
        self._resumed = False
        self.unlinked_since = self._heard
        self._on_cut()

    def close(self) -> None:
        """End the connection for good, without ``on_cut``."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _acknowledge(self) -> None:
        self.tell({"op": "beat", "ack": self._got})

    def _forget_until(self, number: object) -> None:
        if isinstance(number, int):
            self._unacknowledged = [kept for kept in self._unacknowledged if kept[0] > number]

    def _hear(self) -> None:
        now = self._loop.clock()
        if self._heard:
            quiet = now - max(self._heard, self._quiet_from)
            self.longest_quiet = max(self.longest_quiet, quiet)
        self._heard = now

    def _take(self, message: Message) -> None:
        self._hear()
        self._forget_until(message.get("ack"))
        op = message.get("op")
        if op == "resume":
            self._forget_until(message.get("got"))
            self._resumed = True
            for _, kept in list(self._unacknowledged):
                self.tell(kept)
        elif op != "beat":
            if "n" in message:
                number, before = message["n"], self._got
                if not isinstance(number, int) or number > before + 1:
                    raise LinkError("a message is missing")
                self._got = max(before, number)
                self._acknowledge()
                if number <= before:
                    return
            self._on_message(message)


class Member:
    """A node of the run in the coordinator's view; node 0, the coordinator's own, has no conversation.

    Attributes:
        ended: Nothing of the attempt is left there.
        idle: It has no rank left, though the engine that started them may run.
        lost: It will not be heard of again.
    """

    def __init__(self, spec: NodeSpec, conversation: NodeConversation | None) -> None:
        self.spec = spec
        self.conversation = conversation
        self.ended = self.idle = self.lost = False

    @property
    def has_everything(self) -> bool:
        return self.conversation is None or self.lost or self.conversation.settled

    def post(self, message: Message) -> None:
        if self.conversation is not None and not self.lost:
            self.conversation.post(message)

    def begin_again(self) -> None:
        self.ended = self.idle = False
        if self.conversation is not None:
            self.conversation.begin_quiet()


class Supervision:
    """Tells which hosts one side of a run's links has lost sight of, while the run goes on there."""

    def __init__(self, times: LinkTimes, note: Callable[[notes.RunNote], None]) -> None:
        self._times = times
        self._note = note
        self._quiet: dict[str, float] = {}

    def look(self, missed: Mapping[str, float | None]) -> None:
        """Take for how many seconds each host was not heard of; None of a linked one."""
        quiet = {host: seconds for host, seconds in missed.items() if seconds is not None}
        late = {host for host, seconds in quiet.items() if seconds >= self._times.silent}
        back = [host for host in self._quiet if host in missed and host not in quiet]
        new = [host for host in quiet if host in late and host not in self._quiet]
        if back:
            self._note(notes.supervision_return(back, max(self._quiet[host] for host in back)))
        if new:
            self._note(notes.supervision_loss(new, self._times.silent, self._times.give_up))
        self._quiet = {host: quiet[host] for host in quiet if host in late or host in self._quiet}
