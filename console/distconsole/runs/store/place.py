"""How far a host's journal is known here, where it may have lost entries that are stored."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """A place in one host's journal, and how its numbers become those of the store.

    A host that lost the end of its journal gives the numbers again. What is stored stays, so that
    entries after it are stored under higher numbers than their own.

    Attributes:
        seq: Number of the last entry that is known, as the host has it.
        journal: Who wrote it; empty where that is not known.
        shift: What is added to the host's numbers in the store.
        lost_first: Of the entries that the host lost last the first one, as the store has it.
        lost_last: The last one; 0 where none are lost.
    """

    seq: int = 0
    journal: str = ""
    shift: int = 0
    lost_first: int = 0
    lost_last: int = 0

    @property
    def has_lost(self) -> bool:
        """Whether the host may tell something once more."""
        return self.lost_last > 0

    def at(self, seq: int, journal: str) -> Place:
        """Return the place further on."""
        return self._replace(seq=seq, journal=journal)

    def back_to(self, seq: int) -> Place:
        """Return the place up to which the host's journal agrees with what is known."""
        last = self.seq + self.shift
        first = min(seq + self.shift + 1, self.lost_first or last)
        return Place(seq, self.journal, self.shift + self.seq - seq, first, last)


BEGINNING = Place()
"""Where nothing is known."""
