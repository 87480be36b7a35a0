"""What printed lines cost the console: lines a second through keeping, folding, filtering and searching.
How soon a key is answered meanwhile, ``keys`` measures. It judges nothing.

The floor is the same lines read from their stored JSON and appended to a ``deque``; every step is
measured in turn with it.

``python -m benchmarks.logs_cost [--json FILE] [--rounds N]``
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.measure import Spread, alternate, ratios
from distconsole.model.run_events import LogLine
from distconsole.runs.logs.buffer import LogBuffer
from distconsole.runs.logs.filter import parse_filter
from distconsole.runs.logs.rows import LogRows

LINES = 50_000
LINES_S = 20_000
WANTED = "0-3 /loss 0/ -nothing"


def lines(count: int, world: int) -> Iterator[LogLine]:
    """Yield lines of a training loop: ranks say the epoch alike, and each its own loss."""
    for at in range(count):
        rank, step = at % world, at // world
        text = (
            f"epoch {step // 100} step {step}"
            if step % 2
            else f"rank {rank} loss {1 / (2 + at):.4f}"
        )
        yield LogLine(
            t=at / LINES_S, run="r", host=f"n{rank // 8}", stream="out", line=text, rank=rank
        )


class Steps:
    """Each way that the same lines take; a method returns its seconds."""

    def __init__(self) -> None:
        self._events = list(lines(LINES, 8))
        self._stored = [msgspec.json.encode(event) for event in self._events]
        self._decode = msgspec.json.Decoder(LogLine).decode
        self._book = LogBuffer()
        for event in self._events:
            self._book.add(event)

    def floor(self) -> float:
        began = time.perf_counter()
        kept: deque[LogLine] = deque(maxlen=5000)
        for body in self._stored:
            kept.append(self._decode(body))
        return time.perf_counter() - began

    def keep(self) -> float:
        began = time.perf_counter()
        book = LogBuffer()
        for event in self._events:
            book.add(event)
        return time.perf_counter() - began

    def fold(self) -> float:
        return _seconds(LogRows(self._book))

    def fold_digits(self) -> float:
        return _seconds(LogRows(self._book, numbers=True))

    def filter(self) -> float:
        return _seconds(LogRows(self._book, parse_filter(WANTED, 0.0), fold=False))

    def search(self) -> float:
        rows = LogRows(self._book)
        _seconds(rows)
        rows.search(re.compile("loss 0.00", re.IGNORECASE))
        return _seconds(rows)


def _seconds(rows: LogRows) -> float:
    began = time.perf_counter()
    while not rows.advance(1.0):
        pass
    return time.perf_counter() - began


def measure(rounds: int) -> dict[str, Any]:
    steps = Steps()
    names = ("floor", "keep", "fold", "fold_digits", "filter", "search")
    ways: dict[str, Callable[[], float]] = {name: getattr(steps, name) for name in names}
    found = alternate(ways, rounds)
    figures: dict[str, Any] = {"lines": LINES, "steps": {}}
    for name, seconds in found.items():
        rate = Spread.of([LINES / each for each in seconds])
        slower = ratios(seconds, found["floor"])
        figures["steps"][name] = {"lines_s": rate, "of_floor": slower}
    return figures


def rows(figures: Figures) -> list[Row]:
    return [
        Row(
            f"logs, {name.replace('_', ' ')}",
            f"{found['lines_s']['median']:,.0f} lines/s, {text(found['of_floor'])} of the floor",
            f"reading them into a deque {figures['steps']['floor']['lines_s']['median']:,.0f}",
        )
        for name, found in figures["steps"].items()
        if name != "floor"
    ]


if __name__ == "__main__":
    run_alone("logs_cost", __doc__, measure, rows, rounds=5)
