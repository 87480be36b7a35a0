"""What printed lines cost the console: lines a second through keeping, folding, filtering and searching.
How soon a key is answered meanwhile, ``keys`` measures. It judges nothing.

The floor is the same lines read from their stored JSON and appended to a ``deque``; every step is
measured in turn with it.
"""

import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec

from benchmarks.alone import Figures, Row, text
from benchmarks.measure import Compared, compare, methods
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


def measure(rounds: int = 5) -> dict[str, Any]:
    lines = [
        Compared(f"logs, {way.replace('_', ' ')}", way, "floor")
        for way in ("keep", "fold", "fold_digits", "filter", "search")
    ]
    return compare(methods(Steps(), ("floor", *(line.kind for line in lines))), rounds, lines)


def rows(figures: Figures) -> list[Row]:
    rates = {kind: f"{LINES / found['median']:,.0f}" for kind, found in figures["seconds"].items()}
    against = f"of reading them into a deque, {rates['floor']} lines/s"
    return [
        Row(line["figure"], f"{rates[line['kind']]} lines/s", f"{text(line['over'])} {against}")
        for line in figures["lines"]
    ]
