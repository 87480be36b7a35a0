"""What the console needs of a way to reach a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from distconsole.model.cluster import Host

Clock = Callable[[], float]
"""Monotonic seconds."""


class Channel(Protocol):
    """One running command and its three streams."""

    def recv(self, max_bytes: int, timeout: float) -> bytes:
        """Return what stdout has, waiting at most ``timeout`` seconds; empty at its end.

        What stderr has is put aside meanwhile, see ``stderr_tail``.

        Raises TimeoutError if nothing came, LinkLostError if the connection ended.
        """
        ...

    def send(self, data: bytes, timeout: float) -> None:
        """Write all of ``data`` to stdin.

        Raises TimeoutError if not all of it was taken in ``timeout`` seconds, LinkLostError if the connection or the command has ended.
        """
        ...

    def stderr_tail(self) -> str:
        """Return the end of what the command said on stderr, cleaned for a terminal."""
        ...

    def exit_code(self, timeout: float) -> int | None:
        """Return the exit code (128+S for signal S); None if it is not known in time."""
        ...

    def close(self) -> None:
        """Close the streams; does not raise and may be called from any thread, repeatedly."""
        ...


class Connection(Protocol):
    """One node, reached and authenticated."""

    @property
    def reached_at(self) -> str:
        """The node's address at the other end; empty where none is known, as behind a ProxyCommand."""
        ...

    @property
    def alive(self) -> bool:
        """Whether nothing has ended it yet, as far as can be told without asking."""
        ...

    def open(self, command: str, timeout: float) -> Channel:
        """Start ``command`` by the user's shell.

        Raises LinkLostError if the connection ended, AgentError if the server refuses another
        session.
        """
        ...

    def close(self) -> None:
        """Close the connection and everything on it; does not raise, may be called repeatedly."""
        ...


class Transport(Protocol):
    """A way to reach machines. May be called from several threads at once."""

    def connect(self, host: Host) -> Connection:
        """Reach ``host``.

        Raises NodeError: one of its kinds, with what to do about it.
        """
        ...

    def close(self) -> None:
        """Close what connections share (jump hosts); does not raise."""
        ...
