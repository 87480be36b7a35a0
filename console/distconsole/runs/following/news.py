"""What a feed of journals gives out: entries, and what became of the journals themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distconsole.model.names import HostName
from distconsole.rpc.frames import JournalEntry
from distconsole.runs.store.place import BEGINNING, Place


@dataclass(frozen=True, slots=True)
class Delivered:
    """Entries of one host: as they came (for the store), as values, with their corrected times.

    Attributes:
        place: How far the host's journal is read with them.
    """

    host: HostName
    bodies: tuple[dict[str, Any], ...]
    entries: tuple[JournalEntry, ...]
    times: tuple[float, ...]
    place: Place = BEGINNING


@dataclass(frozen=True, slots=True)
class LinkNews:
    """A host was lost or found again; ``gone`` when it will never answer for this run."""

    host: HostName
    t: float
    connected: bool
    reason: str = ""
    gone: bool = False


@dataclass(frozen=True, slots=True)
class JournalGap:
    """Entries ``first`` to ``last`` of a host are missing."""

    host: HostName
    t: float
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class JournalLoss:
    """A host's journal has lost the entries ``first`` to ``last``, which are known here.

    Attributes:
        known: Who wrote them is known, so that they are lost for certain; else the journal is read anew.
    """

    host: HostName
    t: float
    first: int
    last: int
    known: bool


@dataclass(frozen=True, slots=True)
class JournalTrouble:
    """A host cannot write its journal for now, and ``why``; empty when it can again."""

    host: HostName
    t: float
    why: str


@dataclass(frozen=True, slots=True)
class LinesLeftOut:
    """Lines of a host come faster than they are taken; told once."""

    host: HostName
    t: float
    rank: int | None


News = LinkNews | JournalGap | JournalLoss | JournalTrouble | LinesLeftOut
