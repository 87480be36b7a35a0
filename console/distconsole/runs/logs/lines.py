"""Printed lines as they are kept and looked through: small, judged, with who said them as a number."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from distconsole.model.run_events import LogLine
from distconsole.runs.logs.levels import Level, LevelWatch

MAX_SPEAKERS = 1 << 16
"""Who is one more is taken for the last one; a run has fewer ranks and hosts."""


class Speaker(msgspec.Struct, frozen=True):
    """Who printed: a rank, or on a host what stands above the ranks (``rank`` is None)."""

    rank: int | None
    host: str


class BookLine(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """One line.

    Attributes:
        t: UNIX seconds on the console's clock.
        speaker: The number of who printed it, in ``Scribe.speakers``.
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


class Scribe:
    """Turns events into ``BookLine``; they must come in the order of each speaker."""

    def __init__(self) -> None:
        self.speakers: list[Speaker] = []
        self._numbers: dict[tuple[int | None, str], int] = {}
        self._levels = LevelWatch()

    def take(self, event: LogLine) -> BookLine:
        """Return ``event`` as it is kept."""
        rank = None if event.rank is UNSET else event.rank
        speaker = self._numbers.get((rank, event.host))
        if speaker is None:
            speaker = self._new(rank, event.host)
        err = event.stream == "err"
        text = event.line
        level = Level.PLAIN if event.transient else self._levels.of((speaker, err), text)
        styled = "" if event.styled is UNSET else event.styled
        return BookLine(event.t, speaker, err, level, text, styled)

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
