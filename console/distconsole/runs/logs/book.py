"""All lines that a run printed, in the order in which they came: the newest in memory, the rest on the disk."""

from __future__ import annotations

from pathlib import Path

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.lines import BookLine, Scribe, Speaker
from distconsole.runs.logs.spill import SpilledList

HELD_LINES = 4096
HELD_CHARS = 4 * 1024 * 1024


class LogBook:
    """Lines by number, from 0. Any thread may append and read.

    Args:
        folder: Where older lines are put; None takes the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._scribe = Scribe()
        self._lines: SpilledList[BookLine] = SpilledList(
            msgspec.msgpack.Encoder().encode,
            msgspec.msgpack.Decoder(threadsafe(list[BookLine])).decode,
            tail=HELD_LINES,
            weight=_chars,
            max_weight=HELD_CHARS,
            folder=folder,
        )

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def speakers(self) -> list[Speaker]:
        """Who printed, by number; it only grows."""
        return self._scribe.speakers

    @property
    def first(self) -> int:
        """The oldest line that can be read: 0, unless the disk refused."""
        return self._lines.first

    @property
    def failure(self) -> str:
        """Why the disk refused; empty if it did not."""
        return self._lines.failure

    def append(self, event: LogLine) -> None:
        """Keep a line; transient ones are not for keeping."""
        self._lines.append(self._scribe.take(event))

    def line(self, number: int) -> BookLine | None:
        """Return a line; None if it is gone."""
        try:
            return self._lines.get(number)
        except IndexError:
            return None

    def lines(self, start: int, stop: int) -> list[BookLine]:
        """Return lines from ``start`` (or the oldest there is): some of them, before ``stop``."""
        return self._lines.slice(start, stop)

    def close(self) -> None:
        """Give the disk's space back; may be called several times."""
        self._lines.close()


def _chars(line: BookLine) -> int:
    return len(line.text) + len(line.styled)
