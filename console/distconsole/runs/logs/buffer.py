"""All lines that a run printed, in the order in which they came: the newest in memory, the rest on the disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import UNSET

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.levels import Level, LevelWatch
from distconsole.runs.logs.spill import SpilledList

HELD_LINES = 4096
HELD_CHARS = 4 * 1024 * 1024
MAX_SPEAKERS = 1 << 16
"""Who is one more is taken for the last one; a run has fewer ranks and hosts."""


class Speaker(msgspec.Struct, frozen=True):
    """Who printed: a rank, or on a host what stands above the ranks (``rank`` is None)."""

    rank: int | None
    host: str


class BufferedLine(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One line.

    Attributes:
        t: UNIX seconds on the console's clock.
        speaker: The number of who printed it, in ``LogEncoder.speakers``.
        err: Whether it was printed to stderr.
        level: A ``Level``.
        styled: The text with its colours, empty if it has none.
    """

    t: float
    speaker: int
    err: bool
    level: int
    text: str
    styled: str


class LogEncoder:
    """Turns events into ``BufferedLine``; they must come in the order of each speaker."""

    def __init__(self) -> None:
        self.speakers: list[Speaker] = []
        self._numbers: dict[tuple[int | None, str], int] = {}
        self._levels = LevelWatch()

    def take(self, event: LogLine) -> BufferedLine:
        """Return ``event`` as it is kept."""
        rank = None if event.rank is UNSET else event.rank
        speaker = self._numbers.get((rank, event.host))
        if speaker is None:
            speaker = self._new(rank, event.host)
        err = event.stream == "err"
        text = event.line
        level = Level.PLAIN if event.transient else self._levels.of((speaker, err), text)
        styled = "" if event.styled is UNSET else event.styled
        return BufferedLine(event.t, speaker, err, level, text, styled)

    def _new(self, rank: int | None, host: str) -> int:
        if len(self.speakers) >= MAX_SPEAKERS:
            return MAX_SPEAKERS - 1
        self.speakers.append(Speaker(rank, host))
        number = self._numbers[rank, host] = len(self.speakers) - 1
        return number


class Said(msgspec.Struct, frozen=True):
    """Who said one line: the ranks, in order, and the hosts, those of the ranks first."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


def said_by(who: int, speakers: list[Speaker]) -> Said:
    """Return whom the bits of ``who`` stand for."""
    ranks: list[int] = []
    hosts: dict[str, None] = {}
    bits = bin(who)[:1:-1]
    at = bits.find("1")
    while at >= 0:
        speaker = speakers[at]
        if speaker.rank is not None:
            ranks.append(speaker.rank)
        hosts[speaker.host] = None
        at = bits.find("1", at + 1)
    return Said(tuple(sorted(set(ranks))), tuple(hosts))


class LogBuffer:
    """Lines by number, from 0. Any thread may append and read.

    Args:
        folder: Where older lines are put; None takes the system's folder for temporary files.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._scribe = LogEncoder()
        self._lines: SpilledList[BufferedLine] = SpilledList(
            msgspec.msgpack.Encoder().encode,
            msgspec.msgpack.Decoder(threadsafe(list[BufferedLine])).decode,
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

    def line(self, number: int) -> BufferedLine | None:
        """Return a line; None if it is gone."""
        try:
            return self._lines.get(number)
        except IndexError:
            return None

    def lines(self, start: int, stop: int) -> list[BufferedLine]:
        """Return lines from ``start`` (or the oldest there is): some of them, before ``stop``."""
        return self._lines.slice(start, stop)

    def close(self) -> None:
        """Give the disk's space back; may be called several times."""
        self._lines.close()


def _chars(line: BufferedLine) -> int:
    return len(line.text) + len(line.styled)
