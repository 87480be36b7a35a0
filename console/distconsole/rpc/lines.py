"""Bytes to lines with a bound on their length. It knows nothing of what they say."""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.errors import AgentError


class LineBuffer:
    """Collects bytes until a line is whole.

    Args:
        max_bytes: Longest line, with its newline.
        early: What there is already.
    """

    def __init__(self, max_bytes: int, early: bytes = b"") -> None:
        self._max_bytes = max_bytes
        self._held = bytearray(early)
        self._searched = 0

    def feed(self, data: bytes) -> None:
        """Add ``data``."""
        self._held += data

    def lines(self) -> Iterator[bytes]:
        """Take out every whole line, without its newline.

        Raises:
            AgentError: if a line is too long, whole or not.
        """
        start = 0
        while (end := self._held.find(b"\n", max(start, self._searched))) >= 0:
            if end - start >= self._max_bytes:
                raise self._too_long()
            yield bytes(self._held[start:end])
            start = end + 1
        del self._held[:start]
        self._searched = len(self._held)
        if len(self._held) > self._max_bytes:
            raise self._too_long()

    def _too_long(self) -> AgentError:
        return AgentError(f"the agent sent a line longer than {self._max_bytes} bytes")
