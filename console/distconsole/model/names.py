"""Identifiers, each a type of its own with its form; ranks, lists and numbers as people write them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NewType

HostName = NewType("HostName", str)
"""A host as the user wrote it (an ssh_config alias, a name or an address); unique in a cluster."""

RunId = NewType("RunId", str)
"""Identifies a run on every machine: lower-case letters, digits and dashes, at most 40."""

Rank = NewType("Rank", int)
"""A process of the job, counted from 0 over all nodes."""

RUN_ID_PATTERN = re.compile(r"^[a-z0-9][a-z0-9-]{2,39}$")

MAX_RANK = 1_000_000
RANKS_PATTERN = re.compile(r"[0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*")

RankSpans = tuple[tuple[int, int], ...]
"""First and last rank of each span."""

_NO_HOST = re.compile(r"""-|.*[\x00-\x20\x7f'`"$\\;&<>|(){},]""", re.DOTALL)
_NO_USER = re.compile(r"""-|.*([\x00-\x1f\x7f'`";&<>|(){}]|\s-|\\\Z)""", re.DOTALL)

MAX_DIGITS = 18


def may_be_host(text: str) -> bool:
    """Return True if a host's name or address can stand in a shell's command, as OpenSSH 9.6 judges it."""
    return bool(text) and _NO_HOST.match(text) is None


def may_be_user(text: str) -> bool:
    """Return True if a user's name can stand in a shell's command, as OpenSSH 9.6 judges it."""
    return bool(text) and _NO_USER.match(text) is None


def is_whole(text: str) -> bool:
    """Return True if ``int`` takes a text and the result is of use: ``²`` is a digit, and thousands of them are no number."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def parse_ranks(text: str) -> RankSpans:
    """Return the spans of ``0-3,8``: ``((0, 3), (8, 8))``; raises ValueError if it is not ranks."""
    if not RANKS_PATTERN.fullmatch(text):
        raise ValueError(f"{text!r} is not ranks, such as 3 or 0-3,8")
    spans: list[tuple[int, int]] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        span = int(first), int(last or first)
        if span[0] > span[1]:
            raise ValueError(f"{part!r} ends before it begins")
        spans.append(span)
    return tuple(spans)


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as ranges, such as ``0-3,7``."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def join_some(parts: Iterable[object], most: int = 8, separator: str = ", ") -> str:
    """Return the first ``most`` parts in one line, and how many more there are: ``a, b and 5 more``."""
    words = list(map(str, parts))
    more = len(words) - most
    return separator.join(words[:most]) + (f" and {more} more" if more > 0 else "")


UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def size_text(size: int) -> str:
    """Return bytes as ``4 MiB``, ``1.5 GiB`` or ``32 B``."""
    for unit, name in UNITS:
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} B"


def count_text(count: int, noun: str, several: str = "") -> str:
    """Return a number of things, such as ``1 host`` or ``2 hosts``; ``several`` is a plural without ``s``."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
