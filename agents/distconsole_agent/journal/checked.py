"""The checks of one rank (``run --verify-sync``) as entries, which the console compares."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from typing import Any

from distconsole_agent.contract.protocol import MAX_CHECKED, MAX_CHECKED_NAME
from distconsole_agent.journal.rings import (
    CHECK,
    CHECKED_SUFFIX,
    DETAIL,
    HAS_BATCH,
    HAS_PARAMETERS,
    HAS_STATE,
    MAX_CHECKED_BYTES,
    NOWHERE,
    PLACE,
    RING_SUFFIX,
    SAME_EPOCH,
    WRAPPED,
    Record,
)

_PER_RECORD = 8


def checked_path(ring_path: str) -> str:
    """Return where the details of the checks lie that a ring at ``ring_path`` tells of."""
    return ring_path[: -len(RING_SUFFIX)] + CHECKED_SUFFIX


class Checks:
    """What one ring says of its process's checks, record by record.

    Args:
        path: The ring's.
    """

    def __init__(self, path: str) -> None:
        self._path = checked_path(path)
        self._details: list[int] = []
        self._step = -1
        self._named = -1

    def take(
        self, rank: int, record: Record, step_of: Callable[[int], int]
    ) -> dict[str, Any] | None:
        """Return the body of a ``check`` entry when ``record`` ends a check, else None.

        Args:
            rank: Whose record it is.
            record: One of the kinds ``DETAIL`` and ``CHECK``.
            step_of: Gives the rank's number of the process's step.
        """
        step, kind, name = record[1], record[3], record[5]
        if kind == DETAIL:
            self._take_detail(step, name, record[7:11])
            return None
        details, self._details = self._details, []
        whole = self._step == step and len(details) == name * _PER_RECORD
        count = record[6] & 0xFFFF
        flags = record[4]
        rank_there, world, layout = PLACE.unpack(record[10].to_bytes(8, "little"))
        shown = details[:count] if whole and 0 < count <= min(MAX_CHECKED, len(details)) else None
        return {
            "rank": rank,
            "step": step_of(step),
            "parameters": _hex(record[7]) if flags & HAS_PARAMETERS else None,
            "state": _hex(record[8]) if flags & HAS_STATE else None,
            "batch": _hex(record[9]) if flags & HAS_BATCH else None,
            "layout": layout,
            "wrapped": bool(flags & WRAPPED),
            "same_epoch": bool(flags & SAME_EPOCH),
            "place": None if rank_there == NOWHERE else [rank_there, world],
            "bad_gradient": (record[6] >> 16) - 1 if record[6] >> 16 else None,
            "details": None if shown is None else "".join(f"{each:08x}" for each in shown),
            "names": None if shown is None else self._names(layout),
        }

    def _take_detail(self, step: int, number: int, words: Record) -> None:
        if number == 0:
            self._step, self._details = step, []
        expected = number * _PER_RECORD
        if step == self._step and len(self._details) == expected < MAX_CHECKED:
            self._details += struct.unpack("<8I", struct.pack("<4Q", *words))

    def _names(self, layout: int) -> list[str] | None:
        """Return what the details are of, once for each layout; None if it is not to be had."""
        if layout == self._named:
            return None
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            said = json.loads(os.read(fd, MAX_CHECKED_BYTES))
            names = [str(each)[:MAX_CHECKED_NAME] for each in said["names"][:MAX_CHECKED]]
            if said["layout"] != layout:
                return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        finally:
            os.close(fd)
        self._named = layout
        return names


def is_check(record: Record) -> bool:
    """Whether ``record`` belongs to a check."""
    return record[3] in (DETAIL, CHECK)


def _hex(word: int) -> str:
    return f"{word:016x}"
