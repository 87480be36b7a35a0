"""Progress bars of many ranks as few: those that look alike are one, which shows the least far; what stands before a line."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import UNSET

from distconsole.model.names import ranks_text
from distconsole.model.run_events import LogLine, LogSource
from distconsole.runs.logs.fold import NUMBER, PLACEHOLDER
from distconsole.text.output import Output, Paint

_DRAWN = re.compile(r"[\s#=>.\-\u2500-\u25ff]+")
"""What bars are drawn of, and how wide the gaps are."""

_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s?%")
_UNKNOWN = re.compile(r"\?+")


STATUS_SECONDS = 0.25
"""On a terminal bars are drawn at most this often."""

SAID_SECONDS = 10.0
"""In a pipe bars are printed at most this often, and only after progress."""

LIVING_SECONDS = 3.0
"""The status line shows a bar with progress within this time."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A living line, or ``count`` that look alike: the text of the one that is least far, plain and as it is shown.

    ``spread`` is the least and the most percent, such as ``41-45%``; empty where they agree or say none.
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
    for line in sorted(
        lines, key=lambda each: (-1 if each.rank is UNSET else each.rank, each.host, each.stream)
    ):
        key: object = id(line)
        if fold:  # what bars have in common that are differently far
            text = NUMBER.sub(PLACEHOLDER, line.line[:400])
            key = line.stream, _DRAWN.sub("", _UNKNOWN.sub("", text))
        groups.setdefault(key, []).append(line)
    return [_bar(group) for group in groups.values()]


def _bar(group: list[LogLine]) -> Bar:
    found = [_PERCENT.search(line.line[:400]) for line in group]
    known = sorted((float(percent[1]), at) for at, percent in enumerate(found) if percent)
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


class Bars:
    """A run's progress without a screen: a living line on a terminal, in a pipe a line now and then."""

    def __init__(self, output: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._clock = clock
        self._standing: dict[LogSource, LogLine] = {}
        self._changed: set[LogSource] = set()
        self._shown_at = float("-inf")
        self._said_at = clock()
        self._went_on_at = float("-inf")

    @property
    def living(self) -> bool:
        return bool(self._standing) and self._clock() - self._went_on_at < LIVING_SECONDS

    def show(self, event: LogLine) -> None:
        """Take the new state of a bar, and show it if that is due."""
        now = self._clock()
        self._standing[event.source] = event
        self._changed.add(event.source)
        self._went_on_at = now
        if self._output.live:
            if now - self._shown_at >= STATUS_SECONDS:
                self._shown_at = now
                self._output.status(
                    "  ".join(map(bar_text, alike(self._standing.values(), fold=True)))
                )
        elif now - self._said_at >= SAID_SECONDS:
            self._said_at = now
            changed = [self._standing[source] for source in self._changed]
            self._changed.clear()
            for bar in alike(changed, fold=True):
                self._output.say(bar_text(bar))

    def end(self, event: LogLine) -> None:
        """Take that a whole line came in a bar's place."""
        if self._standing.pop(event.source, None) is not None:
            self._changed.discard(event.source)


def bar_text(bar: Bar) -> str:
    """Return a bar as a line without colours."""
    who = ranks_text(bar.ranks) if bar.ranks else ",".join(bar.hosts)
    spread = f" {bar.spread}" if bar.spread else ""
    host = f" {bar.hosts[0]}" if bar.ranks and bar.count == 1 else ""
    return f"[{who}{host}]{spread} {bar.line.strip()}"


def name_text(event: LogLine) -> str:
    """Return the prefix of a line: ``[0 node1]``, ``[0-3,8]`` if it was folded, ``[node1]``."""
    if event.ranks is not UNSET:
        return f"[{ranks_text(event.ranks)}]"
    if event.hosts is not UNSET:
        return f"[{','.join(event.hosts)}]"
    return f"[{event.rank} {event.host}]" if event.rank is not UNSET else f"[{event.host}]"


def line_text(event: LogLine, paint: Paint) -> str:
    return event.styled if paint.enabled and event.styled is not UNSET else event.line
