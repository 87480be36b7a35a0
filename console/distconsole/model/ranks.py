"""Ranks as people write them, ``0-3,8``."""

from __future__ import annotations

import re

MAX_RANK = 1_000_000
RANKS_PATTERN = re.compile(r"[0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*")

RankSpans = tuple[tuple[int, int], ...]
"""First and last rank of each span."""


def parse_ranks(text: str) -> RankSpans:
    """Return the spans of ``0-3,8``: ``((0, 3), (8, 8))``.

    Raises ValueError if it is not ranks, or a span ends before it begins.
    """
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


def in_spans(rank: int, spans: RankSpans) -> bool:
    return any(first <= rank <= last for first, last in spans)
