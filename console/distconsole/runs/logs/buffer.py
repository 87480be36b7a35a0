"""All lines that a run printed, in order of arrival: the newest in memory, the rest on the disk."""

from __future__ import annotations

import re
from functools import lru_cache, partial
from pathlib import Path

import msgspec
from msgspec import UNSET

from distconsole.model.decoding import threadsafe
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.counts import LogCounts
from distconsole.runs.logs.levels import Level, LevelWatch
from distconsole.runs.logs.spill import SpilledList

HELD_CHARS = 4 * 1024 * 1024
LINE_CHARS = 1024
"""Bytes of a line beside its text: at most 4,096 lines are held."""
MAX_SPEAKERS = 1 << 16
"""Further speakers share the last place; a run has fewer ranks and hosts."""


class Speaker(msgspec.Struct, frozen=True):
    """The source of a line: a rank, or a host's process above the ranks (``rank`` is None)."""

    rank: int | None
    host: str


class BufferedLine(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One line: its speaker's number in ``LogEncoder.speakers``, its ``Level``, and ``styled``, the text with colours if any.

    ``t`` in UNIX seconds on the console's clock.
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
        rank = None if event.rank is UNSET else event.rank
        speaker = self._numbers.get((rank, event.host))
        if speaker is None:
            speaker = min(len(self.speakers), MAX_SPEAKERS - 1)
            if len(self.speakers) < MAX_SPEAKERS:
                self.speakers.append(Speaker(rank, event.host))
                self._numbers[rank, event.host] = speaker
        err = event.stream == "err"
        text = event.line
        level = Level.PLAIN if event.transient else self._levels.of((speaker, err), text)
        styled = "" if event.styled is UNSET else event.styled
        return BufferedLine(event.t, speaker, err, level, text, styled)


class Said(msgspec.Struct, frozen=True):
    """The speakers of one line: the ranks, in order, and the hosts, those of the ranks first."""

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]


def said_by(who: int, speakers: list[Speaker]) -> Said:
    bits = bin(who)[:1:-1]
    said = [speakers[match.start()] for match in re.finditer("1", bits)]
    ranks = {speaker.rank for speaker in said if speaker.rank is not None}
    return Said(tuple(sorted(ranks)), tuple(dict.fromkeys(speaker.host for speaker in said)))


class LogBuffer(SpilledList[BufferedLine]):
    """Lines by number, from 0; older ones in ``folder``, as in a ``BlobFile``. One thread adds, any may read."""

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__(
            msgspec.msgpack.Encoder().encode,
            msgspec.msgpack.Decoder(threadsafe(list[BufferedLine])).decode,
            max_weight=HELD_CHARS,
            weight=lambda line: LINE_CHARS + len(line.text) + len(line.styled),
            folder=folder,
        )
        self._encoder = LogEncoder()
        self.speakers = self._encoder.speakers
        """Sources of lines, by number; it only grows."""
        self.said_by = lru_cache(256)(partial(said_by, speakers=self.speakers))
        """As the function; of thousands of ranks it takes half a millisecond."""
        self.counts = LogCounts()

    def add(self, event: LogLine) -> None:
        """Keep a line; transient ones are not for keeping."""
        line = self._encoder.take(event)
        self.append(line)
        self.counts.add(line.t, line.speaker, line.level)
