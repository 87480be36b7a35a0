"""Progress bars of many ranks as few: those that look alike are one, which shows the least far. It prints nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.model.events import LogLine
from distconsole.monitor.log_fold import NUMBER, PLACEHOLDER

_DRAWN = re.compile(r"[\s#=>.\-\u2500-\u25ff]+")
"""What bars are drawn of, and how wide the gaps are."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")
_UNKNOWN = re.compile(r"\?+")


@dataclass(frozen=True, slots=True)
class Bar:
    """A living line, or several that look alike.

    Attributes:
        ranks, hosts: Who shows it.
        count: How many lines it stands for.
        line: The text of the one that is least far.
        shown: The same in its colours, if it has any.
        spread: Least and most percent, as ``41-45%``; empty where they agree or say none.
    """

    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    count: int
    line: str
    shown: str
    spread: str


def alike(lines: Iterable[LogLine], *, fold: bool) -> list[Bar]:
    """Return ``lines`` (the transient ones that stand there) as bars, by rank; folded if asked."""
    groups: dict[object, list[LogLine]] = {}
    for line in sorted(lines, key=_by_rank):
        key = (line.stream, _shape(line.line)) if fold else id(line)
        groups.setdefault(key, []).append(line)
    return [_bar(group) for group in groups.values()]


def _by_rank(line: LogLine) -> tuple[int, str, str]:
    return (-1 if line.rank is UNSET else line.rank, line.host, line.stream)


def _shape(text: str) -> str:
    """Return what two bars have in common that are differently far."""
    text = NUMBER.sub(PLACEHOLDER, text[:400])
    return _DRAWN.sub("", _UNKNOWN.sub("", text))


def _bar(group: list[LogLine]) -> Bar:
    percents = [(_percent(line.line), at) for at, line in enumerate(group)]
    known = sorted((percent, at) for percent, at in percents if percent is not None)
    least = group[known[0][1]] if known else group[0]
    spread = ""
    if known and known[0][0] != known[-1][0]:
        spread = f"{known[0][0]:g}-{known[-1][0]:g}%"
    return Bar(
        ranks=tuple(sorted({line.rank for line in group if line.rank is not UNSET})),
        hosts=tuple(dict.fromkeys(line.host for line in group)),
        count=len(group),
        line=least.line,
        shown=least.line if least.styled is UNSET else least.styled,
        spread=spread,
    )


def _percent(text: str) -> float | None:
    found = _PERCENT.search(text[:400])
    return float(found[1]) if found else None
