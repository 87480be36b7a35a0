"""What two shims have to say to each other, over as many connections as it takes.

Numbered messages arrive exactly once and in order; heartbeats and clocks are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from distconsole_agent.coordination.channel import Delivery, LinkError, LinkTimes, Session

if TYPE_CHECKING:
    from distconsole_agent.system.loop import Loop


class Conversation:
    """One side of it.

    Args:
        on_message: Called with each new message and with those that are not kept.
        on_cut: Called with the reason whenever a connection ended.

    Attributes:
        unlinked_since: Loop time of the last sign of life before the connection was lost; None
            while there is one.
    """

    def __init__(
        self,
        loop: Loop,
        times: LinkTimes,
        on_message: Callable[[dict[str, Any]], None],
        on_cut: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._times = times
        self._on_message = on_message
        self._on_cut = on_cut
        self._delivery = Delivery()
        self._session: Session | None = None
        self._resumed = False
        self._heard = 0.0
        self.unlinked_since: float | None = loop.clock()

    @property
    def linked(self) -> bool:
        """Whether there is a connection."""
        return self._session is not None

    @property
    def settled(self) -> bool:
        """Whether the other side has every message that is kept."""
        return self._delivery.settled

    @property
    def quiet_seconds(self) -> float | None:
        """How long the other side has not been heard of; None while there is a connection."""
        since = self.unlinked_since
        return None if since is None else self._loop.clock() - since

    def attach(self, session: Session) -> None:
        """Go on over a new connection, in place of the one that there was."""
        if self._session is not None:
            self._session.close()
        self._session = session
        self._resumed = False
        self._heard = self._loop.clock()
        self.unlinked_since = None
        self.tell({"op": "resume", "got": self._delivery.got})

    def post(self, message: dict[str, Any]) -> None:
        """Say something that must arrive."""
        numbered = self._delivery.post(message)
        if self._resumed:
            self.tell(numbered)

    def tell(self, message: dict[str, Any]) -> None:
        """Say something that may be lost with the connection."""
        if self._session is None:
            return
        try:
            self._session.send(message)
        except LinkError as error:
            self.cut(str(error))

    def receive(self, lines: list[bytes]) -> None:
        """Take lines that came over the connection of now."""
        for line in lines:
            if self._session is None:
                return
            try:
                self._take(self._session.open(line))
            except LinkError as error:
                self.cut(str(error))

    def beat(self) -> None:
        """Give a sign of life, and cut a connection without one from the other side."""
        if self._session is None:
            return
        if self._loop.clock() - self._heard > self._times.silent:
            self.cut(f"silent for {self._times.silent:g} s")
            return
        self._acknowledge()

    def cut(self, reason: str) -> None:
        """End the connection; the conversation may go on over another one."""
        if self._session is None:
            return
        self._session.close()
        self._session = None
        self._resumed = False
        self.unlinked_since = self._heard
        self._on_cut(reason)

    def close(self) -> None:
        """End the connection for good, and tell nobody."""
        if self._session is not None:
            self._session.close()
            self._session = None

    def _acknowledge(self) -> None:
        self.tell({"op": "beat", "ack": self._delivery.got})

    def _take(self, message: dict[str, Any]) -> None:
        self._heard = self._loop.clock()
        self._delivery.acknowledged(message.get("ack"))
        op = message.get("op")
        if op == "resume":
            self._delivery.acknowledged(message.get("got"))
            self._resumed = True
            for kept in self._delivery.missing():
                self.tell(kept)
        elif op != "beat":
            if "n" in message:
                fresh = self._delivery.is_new(message)
                self._acknowledge()
                if not fresh:
                    return
            self._on_message(message)
