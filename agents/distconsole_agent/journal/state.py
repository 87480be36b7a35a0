"""Reads the files of a journal, up to the first damaged line."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any

from distconsole_agent.contract.limits import READ_BYTES
from distconsole_agent.journal.lines import is_end, mark_of, seq_of

Mark = dict[str, dict[str, Any]]
"""Group -> name -> position, such as ``{"logs": {"rank-0.out": 4096}}``."""


def plain_path(folder: str, number: int) -> str:
    """Return the path of a segment that is still written or not yet compressed."""
    return os.path.join(folder, f"{number:06d}.jsonl")


def packed_path(folder: str, number: int) -> str:
    """Return the path of a segment that is complete and compressed."""
    return plain_path(folder, number) + ".gz"


def segments(folder: str) -> list[int]:
    """Return the numbers of the segments that exist, in order."""
    numbers = set()
    for name in os.listdir(folder):
        number = name.split(".", 1)[0]
        if name in (f"{number}.jsonl", f"{number}.jsonl.gz") and number.isdigit():
            numbers.add(int(number))
    return sorted(numbers)


class State:
    """A journal up to the end of one of its segments, or to what is damaged in it.

    Attributes:
        number: That segment; 0 without any.
        size: Its bytes up to the last mark; what follows is no part of the journal.
        packed: Whether it is compressed, and so complete.
        begins_after: Number of the last entry of the segment before it.
        last_seq: Number of the last entry.
        ended: Whether that is ``end``.
        mark: How far the sources were read.
        journal_id: Who wrote last; empty for the first version.
        kept: Writer before it -> the last of its entries that this journal has.
        lost_bytes: How much there is behind a damaged line, that line included.
    """

    def __init__(self, number: int = 0, path: str = "") -> None:
        self.number = number
        self.size = self.begins_after = self.last_seq = self.lost_bytes = 0
        self.packed = path.endswith(".gz")
        self.ended = False
        self.mark: Mark = {}
        self.journal_id = ""
        self.kept: dict[str, int] = {}
        if path:
            self._replay(path)

    def _replay(self, path: str) -> None:
        offset, pending, ended = 0, 0, False
        for line in _lines(path):
            mark = mark_of(line)
            seq = seq_of(line) if mark is None else 0
            if offset == 0:
                sound = mark is not None and "last_seq" in mark
                self.begins_after = pending = mark["last_seq"] if mark and sound else 0
            else:
                sound = mark is not None or seq == pending + 1
            if not sound:
                # A line that its writer did not finish is no damage.
                if line.endswith(b"\n") or b"\0" in line:
                    self.lost_bytes = max(1, os.stat(path).st_size - self.size)
                return
            offset += len(line)
            if mark is None:
                pending, ended = seq, is_end(line)
                continue
            self._take(mark, pending, ended=ended)
            self.size, pending = offset, self.last_seq

    def _take(self, mark: dict[str, Any], pending: int, *, ended: bool) -> None:
        merge(self.mark, mark["mark"])
        self.last_seq = mark.get("last_seq", pending)
        self.ended = mark.get("ended", ended)
        journal = mark.get("journal")
        if isinstance(journal, dict):
            self.journal_id, self.kept = journal["id"], journal["kept"]


def read_state(folder: str) -> State:
    """Return what a journal's files hold, up to the first damage.

    A compressed segment was synced before the plain one was removed. Those after it may lack their
    ends each, so they are read in their order.

    Raises:
        OSError: when they cannot be read.
    """
    numbers = segments(folder)
    packed = [number for number in numbers if os.path.exists(packed_path(folder, number))]
    state, lost = _read_chain(folder, numbers, packed[-1] if packed else 0)
    while not state.size and packed:
        number = packed.pop()
        state = State(number, packed_path(folder, number))
        lost += state.lost_bytes
        if not state.size and os.path.exists(plain_path(folder, number)):
            state = State(number, plain_path(folder, number))
    state = state if state.size else State()
    state.lost_bytes = lost
    return state


def _read_chain(folder: str, numbers: list[int], packed: int) -> tuple[State, int]:
    """Return the last of the segments after ``packed`` that goes on from the one before, and what is lost."""
    state, lost, broken = State(), 0, False
    for number in numbers:
        if number <= packed:
            continue
        found = State(number, plain_path(folder, number))
        begins_there = found.begins_after == state.last_seq if state.size else True
        follows = number == (state.number or packed) + 1 and begins_there
        if broken or not (found.size and follows):
            broken = True
            lost += found.size + found.lost_bytes
        else:
            state, lost, broken = found, found.lost_bytes, found.lost_bytes > 0
    return state, lost


def merge(into: Mark, changed: Mark) -> None:
    """Put the ``changed`` positions into a mark."""
    for group, positions in changed.items():
        into.setdefault(group, {}).update(positions)


def unpack(packed: zlib._Decompress, data: bytes) -> bytes | None:
    """Return what compressed bytes hold; None where they are damaged."""
    try:
        return packed.decompress(data)
    except zlib.error:
        return None


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a segment; the last may have no end."""
    rest = b""
    unpacker = zlib.decompressobj(31) if path.endswith(".gz") else None
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            text = chunk if unpacker is None else unpack(unpacker, chunk)
            if text is None:
                break
            *lines, rest = (rest + text).split(b"\n")
            for line in lines:
                yield line + b"\n"
    if rest:
        yield rest
