"""One line of a journal: JSON with its own checksum as the last field, or as the first version wrote it.

The checksum covers the bytes before it. It finds lines that a power failure damaged: blocks of
zeros, or the beginning of one line with the end of another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import NamedTuple

from distconsole_agent.contract import records
from distconsole_agent.contract.records import RecordError

MARK = b'{"mark":'
_SEQ = b'{"seq":'
_CRC = b',"crc":"'
_CHECKED_END = _CRC + b'%08x"}\n'
_TAIL = len(_CHECKED_END % 0)
_END = b'"kind":"end"'
_KIND_WITHIN = 120
"""``kind`` follows ``seq`` and ``t``; quotes inside a text are escaped, so this cannot mistake one."""

_ENCODER = json.JSONEncoder(separators=(",", ":"))


def dump(value: Mapping[str, object]) -> bytes:
    """Return a line that holds ``value``, which has at least one field."""
    open_text = _ENCODER.encode(value)[:-1].encode("ascii")
    return open_text + _CHECKED_END % zlib.crc32(open_text)


def body_of(line: bytes) -> bytes:
    return line[:-_TAIL] + b"}" if _has_crc(line) else line.rstrip(b"\n")


def seq_of(line: bytes) -> int:
    """Return the number of an entry; 0 for a line that is none, or is damaged."""
    if not line.startswith(_SEQ) or not (_agrees(line) if _has_crc(line) else _parse(line)):
        return 0
    try:
        return int(line[len(_SEQ) : line.index(b",", len(_SEQ))])
    except ValueError:
        return 0


class Signature(NamedTuple):
    """The writer of what follows, and how many entries of the writers before it the journal has."""

    id: str
    kept: Mapping[str, int]


class MarkLine(NamedTuple):
    """Positions of the sources since the mark before; the first line of a segment also has ``last_seq`` and ``ended``."""

    mark: Mapping[str, Mapping[str, object]]
    last_seq: int | None = None
    ended: bool | None = None
    journal: Signature | None = None


def mark_of(line: bytes) -> MarkLine | None:
    """Return a mark; None for a line that is none, or is damaged."""
    if not line.startswith(MARK) or (_has_crc(line) and not _agrees(line)):
        return None
    try:
        return records.read(MarkLine, _parse(line))
    except RecordError:
        return None


def is_end(line: bytes) -> bool:
    return _END in line[:_KIND_WITHIN]


def _has_crc(line: bytes) -> bool:
    # By position, not by the field's name: a line with a damaged name is none of the first version.
    tail = line[-_TAIL:]
    return tail.startswith(b',"') and tail[5:8] == b'":"' and tail.endswith(b'"}\n')


def _agrees(line: bytes) -> bool:
    return line[-_TAIL:] == _CHECKED_END % zlib.crc32(line[:-_TAIL])


def _parse(line: bytes) -> object:
    if not line.endswith(b"}\n"):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
