"""What printed lines cost the console: lines a second through keeping, folding, filtering and searching,
and how soon a key is answered while 20,000 lines a second come in. It judges nothing.

The floor is the same lines read from their stored JSON and appended to a ``deque``; every step is
measured in turn with it. Keys are pressed in a pseudo-terminal of 120 x 36 that shows the Logs
screen: Home, until the first line of the run is on the terminal, and End, until it is not.

``python -m benchmarks.logs_cost [--json FILE] [--rounds N] [--keys N]``
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgspec

from benchmarks.measure import Spread, alternate, cost_over, ratios, rss_bytes, write_json
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.run_events import LogLine
from distconsole.monitor.log_book import LogBook
from distconsole.monitor.log_filter import parse_filter
from distconsole.monitor.log_rows import LogRows
from distconsole.operations import Control, SessionSource
from fakes import scenes

LINES = 50_000
LINES_S = 20_000
BURST = 400
"""Lines that come at once, as a node's journal brings them."""

COLUMNS, ROWS = 120, 36
WORLDS = (8, 2048)
FIRST = b"the very first line"
PATIENCE_SECONDS = 30.0
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
        self._book = LogBook()
        for event in self._events:
            self._book.append(event)

    def floor(self) -> float:
        began = time.perf_counter()
        kept: deque[LogLine] = deque(maxlen=5000)
        for body in self._stored:
            kept.append(self._decode(body))
        return time.perf_counter() - began

    def keep(self) -> float:
        began = time.perf_counter()
        book = LogBook()
        for event in self._events:
            book.append(event)
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


def flood(world: int) -> Iterator[Event]:
    """Yield a run's plan, and lines at their rate for as long as somebody takes them."""
    yield scenes.plan(world, 8)
    yield scenes.log(0, FIRST.decode())
    began, sent = time.monotonic(), 0
    while True:
        for event in lines(BURST, world):
            yield msgspec.structs.replace(event, t=scenes.START + sent / LINES_S)
        sent += BURST
        time.sleep(max(0.0, began + sent / LINES_S - time.monotonic()))


def be_console(world: int) -> None:
    """Be the console on a run that prints."""
    from distconsole.tui.app import ConsoleApp

    def perform(request: ask.Request, _s: SessionSource, control: Control) -> Iterator[Event]:
        for event in flood(world) if isinstance(request, ask.Attach) else ():
            if control.asked is not None:
                return
            yield event

    app = ConsoleApp(ask.Attach(run=scenes.RUN), perform=perform)
    app.sitting.begin()
    app.run()


def measure_keys(world: int, keys: int) -> dict[str, Any]:
    """Return how long Home took to be answered, in seconds, and what the screen cost meanwhile."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        os.execv(  # noqa: S606 - the child is to be the console itself
            sys.executable, [sys.executable, __file__, "--be", str(world)]
        )
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    _read_for(terminal, 4.0)
    os.write(terminal, b"\x1b[15~")  # F5, the logs
    _read_for(terminal, 2.0)
    os.write(terminal, b"\x1b")  # into the view
    _read_for(terminal, 2.0)
    took = []
    for _ in range(keys):
        began = time.perf_counter()
        os.write(terminal, b"g")
        _read_until(terminal, FIRST)
        took.append(time.perf_counter() - began)
        _read_for(terminal, 0.15)
        os.write(terminal, b"G")
        _read_for(terminal, 0.25)
    cost = cost_over(pid, 0.5)
    os.write(terminal, b"\x11")
    _read_for(terminal, 6.0)
    os.waitpid(pid, 0)
    os.close(terminal)
    ordered = sorted(took)
    return {
        "seconds": asdict(Spread.of(took)),
        "p99_seconds": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "rss_bytes": cost.rss_bytes or rss_bytes(pid),
    }


def _read_for(terminal: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (rest := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], rest)[0]:
            try:
                os.read(terminal, 65536)
            except OSError:
                return


def _read_until(terminal: int, wanted: bytes) -> None:
    """Raises: TimeoutError if ``wanted`` does not come within ``PATIENCE_SECONDS``."""
    seen, until = b"", time.monotonic() + PATIENCE_SECONDS
    while wanted not in seen:
        if time.monotonic() > until:
            raise TimeoutError(f"{wanted!r} did not come to the screen")
        if select.select([terminal], [], [], 0.1)[0]:
            seen = seen[-4096:] + os.read(terminal, 65536)


def measure_all(rounds: int, keys: int) -> dict[str, Any]:
    """Measure and print all of it."""
    steps = Steps()
    names = ("floor", "keep", "fold", "fold_digits", "filter", "search")
    ways: dict[str, Callable[[], float]] = {name: getattr(steps, name) for name in names}
    found = alternate(ways, rounds)
    figures: dict[str, Any] = {"lines": LINES, "steps": {}, "keys": {}}
    for name, seconds in found.items():
        rate = Spread.of([LINES / each for each in seconds])
        slower = ratios(seconds, found["floor"])
        print(
            f"{name:<12} {rate.text(1e-3, 0):>20} thousand lines/s, {slower.text()} of the floor"
        )
        figures["steps"][name] = {"lines_s": asdict(rate), "of_floor": asdict(slower)}
    for world in WORLDS:
        keyed = figures["keys"][str(world)] = measure_keys(world, keys)
        print(
            f"{world} ranks, {LINES_S:,} lines/s: a key is answered in "
            f"{1000 * keyed['seconds']['median']:.0f} ms, p99 {1000 * keyed['p99_seconds']:.0f} ms; "
            f"{keyed['rss_bytes'] / 2**20:.0f} MiB",
            flush=True,
        )
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--be", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keys", type=int, default=50)
    given = parser.parse_args(arguments)
    if given.be:
        be_console(given.be)
        return 0
    figures = measure_all(given.rounds, given.keys)
    if given.json is not None:
        write_json(given.json, "logs_cost", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
