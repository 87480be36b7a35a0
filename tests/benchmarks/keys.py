"""How soon the console answers a key at 2,048 ranks, each of which tells a window a second, while 20,000
lines a second are printed: from the key's byte to the text on the terminal that it asked for.

Each screen runs in a pseudo-terminal of 120 x 36, and against them a bare Textual table of 2,048 rows
to which nobody tells anything. Beside the time by the clock stands the CPU time that the thread which
draws took meanwhile, which says less of what else the machine does. It judges nothing.
"""

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.alone import Figures, Row, at_most, program
from benchmarks.glass import Watched
from benchmarks.logs_cost import lines
from benchmarks.measure import Tail, cpu_seconds
from benchmarks.tui_cost import TOLD_AT, run_console
from distconsole.model.events import Event
from fakes import scenes

WORLD, PER_HOST = 2048, 8
LINES_S = 20_000
TARGET_SECONDS = 0.05
TICK_SECONDS = 0.02
FIRST = "the very first line"
SETTLING_SECONDS = 4.0


@dataclass(frozen=True)
class Way:
    """A screen, and two keys that turn it from one text to another and back.

    Attributes:
        opens: What brings it to the screen, a key at a time.
        there: Key, and whether its text is there.
        back: The same for the way back.
    """

    opens: tuple[bytes, ...]
    there: tuple[bytes, Callable[[str], object]]
    back: tuple[bytes, Callable[[str], object]]


def has(pattern: str) -> Callable[[str], object]:
    """Return what finds ``pattern`` on a screen."""
    return re.compile(pattern, re.MULTILINE).search


def lacks(pattern: str) -> Callable[[str], object]:
    """Return what says that ``pattern`` is not on a screen."""
    return lambda text: not re.search(pattern, text, re.MULTILINE)


F4, F5, HOME, END = b"\x1bOS", b"\x1b[15~", b"\x1b[H", b"\x1b[F"
LAST_RANK = rf"^\W*{WORLD - 1} +node\d+ +\d"
OLDEST = r"node1 \+5 {2,9}◆"
"""The cursor of the heat map is on its first moment, whether or not that has a cell."""
WAYS = {
    "textual": Way((), (b"\x1b[1;5F", has(LAST_RANK)), (b"\x1b[1;5H", lacks(LAST_RANK))),
    "run": Way((F4,), (END, has(LAST_RANK)), (HOME, lacks(LAST_RANK))),
    "heat map": Way((F4, b"h"), (HOME, has(OLDEST)), (END, lacks(OLDEST))),
    "logs": Way((F5,), (b"g", has(FIRST)), (b"G", lacks(FIRST))),
}


def flood() -> Iterator[Event]:
    """Yield a run's start, then windows and lines at their rates for as long as somebody takes them."""
    yield from scenes.training(WORLD, PER_HOST, gpus=False)
    yield scenes.log(0, FIRST)
    began, sent, second = time.monotonic(), 0, 0
    printed = lines(sys.maxsize, WORLD)
    while True:
        now = time.monotonic() - began
        t = TOLD_AT[0] = scenes.MINUTE_LATER + now
        while second <= now:
            second += 1
            for rank in range(WORLD):
                slow = 1.0 + (rank + second) % 9 / 100
                yield scenes.window(rank, 600 + 50 * second, t, slow, PER_HOST)
        while sent < now * LINES_S:
            sent += 1
            yield msgspec.structs.replace(next(printed), t=t)
        time.sleep(TICK_SECONDS)


def be_textual() -> None:
    """Be a bare table."""
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable

    class Bare(App[None]):
        def compose(self) -> ComposeResult:
            yield DataTable(cursor_type="row")

        def on_mount(self) -> None:
            table = self.query_one(DataTable)
            table.add_columns("rank", "host", "step", "ms/step")
            for rank in range(WORLD):
                table.add_row(str(rank), f"node{rank // PER_HOST + 1}", "600", "18.0")

    Bare().run()


def drawing_seconds(pid: int) -> float:
    """Return the CPU time of a process's first thread, which is the one that draws."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def on_screen(screen: str, keys: int, folder: str) -> dict[str, Any]:
    """Press ``keys`` keys on a screen; return how long they took, in seconds."""
    way, chance = WAYS[screen], random.Random(1)
    took: list[float] = []
    worked: list[float] = []
    home = {"XDG_DATA_HOME": folder, "XDG_STATE_HOME": folder}
    with Watched(program("keys", screen), home) as console:
        console.look_until(has(r"^\W*0 +node1 "), "the ranks")
        for key in way.opens:
            console.press(key)
            console.look_for(SETTLING_SECONDS / 2)
        console.look_for(SETTLING_SECONDS)
        before, since = cpu_seconds(console.pid), time.monotonic()
        for number in range(keys):
            key, is_so = way.back if number % 2 else way.there
            console.look_for(chance.uniform(0.05, 0.3))
            cpu, began = drawing_seconds(console.pid), time.perf_counter()
            console.press(key)
            took.append(console.look_until(is_so, f"what key {number} asks for") - began)
            worked.append(drawing_seconds(console.pid) - cpu)
        share = (cpu_seconds(console.pid) - before) / (time.monotonic() - since)
    return {"seconds": Tail.of(took), "cpu_seconds": Tail.of(worked), "cpu_share": share}


def measure(keys: int = 300, only: str = ",".join(WAYS)) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-keys-") as folder:
        return {screen: on_screen(screen, keys, folder) for screen in only.split(",")}


def key_text(found: dict[str, Any]) -> str:
    """Return what was measured of a screen in words."""
    took, worked = (
        "{median:.0f} ms, p99 {p99:.0f}, longest {longest:.0f}".format(
            **{name: 1000 * found[kind][name] for name in ("median", "p99", "longest")}
        )
        for kind in ("seconds", "cpu_seconds")
    )
    return f"{took}; CPU of the drawing thread {worked}"


def rows(figures: Figures) -> list[Row]:
    bare = figures.get("textual")
    against = f"a bare table to which nobody tells anything: {key_text(bare)}" if bare else ""
    return [
        Row(
            f"a key, {screen} at {WORLD:,} ranks and {LINES_S:,} lines/s",
            key_text(found),
            against,
            *at_most(1000 * TARGET_SECONDS, 1000 * found["seconds"]["p99"], " ms, p99"),
        )
        for screen, found in figures.items()
        if screen != "textual"
    ]


def be(screen: str) -> None:
    be_textual() if screen == "textual" else run_console(flood())
