"""Which others each of very many hosts tries: all pairs of a thousand hosts are a million."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ALL_PAIRS_HOSTS = 128
"""Up to this many hosts each one tries all others."""


def partners(names: Sequence[T], place: int) -> list[T]:
    """Return the others that the host at ``place`` of ``names`` tries: all, or those 1, 2, 4, 8 … places before and behind it.

    Then each host is tried by as many, in both directions; two parts of the list, such as racks, by many pairs.
    """
    count = len(names)
    if count <= ALL_PAIRS_HOSTS:
        return [*names[:place], *names[place + 1 :]]
    steps = [1 << power for power in range((count // 2).bit_length())]
    places = dict.fromkeys((place + way * step) % count for step in steps for way in (1, -1))
    return [names[each] for each in places if each != place]
