"""What it costs to open a past run of a million records: ``show``, ``report`` and every ``export``; to
go to a moment of it; and to list ten thousand runs.

A record is a step of a rank, as the hook records it; the agents have made windows of a second of them,
as in a run of 64 ranks at 20 steps a second. Each verb is the program itself, started anew. Against it:
reading the rows and doing nothing, and TensorBoard's own loader on the event files exported.
"""

import contextlib
import os
import random
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import MIB, Figures, Row, at_most, rows_of_turns, text
from benchmarks.measure import Compared, Spread, Tail, compare, methods
from distconsole.model.names import RunId
from distconsole.operations.stored.history import list_summaries
from distconsole.runs.replay.recording import Recording
from distconsole.runs.store.catalogue import NAME
from distconsole.runs.store.store import RunStore
from fakes.journals import STEPS_A_WINDOW, Journal

HOSTS, PER_HOST = 8, 8
SEEKS = 200
SEEK_SECONDS = 0.1
RUNS = 10_000
EXPORTS = ("jsonl", "csv", "tensorboard", "prometheus")
OF_ROWS = ("rows", "its rows by SQLite alone")
NOT_FOLLOWED = "past run: show, if it was not followed from here to its end"
LINES = (
    Compared("past run: show", "show", *OF_ROWS, seconds=1.0),
    Compared(NOT_FOLLOWED, "show_first", *OF_ROWS, seconds=1.0),
    Compared("past run: report", "report"),
    *(Compared(f"past run: export {kind}", f"export_{kind}") for kind in EXPORTS),
    Compared("TensorBoard loads its export", "tensorboard"),
)
READ_BACK = """\
import sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
for place in ("", "lowest", "highest", "ranks"):
    EventAccumulator(f"{sys.argv[1]}/{place}", size_guidance={"scalars": 0}).Reload()
"""


class Past:
    """A stored run, and what opens it."""

    def __init__(self, folder: Path, records: int) -> None:
        seconds = max(1, records // (HOSTS * PER_HOST * STEPS_A_WINDOW))
        self.journal = Journal(
            run="past-1", hosts=HOSTS, per_host=PER_HOST, seconds=seconds, slow=5
        )
        self.cpu_seconds = 0.0
        """Of the program that ran last."""
        self._folder = folder
        self._runs = folder / "data" / "distconsole" / "runs"
        self.journal.write(RunStore(self._runs))
        self._environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}

    @property
    def file(self) -> Path:
        return self._runs / f"{self.journal.run}.db"

    def forget(self) -> None:
        """Forget what was kept of an earlier opening."""
        with contextlib.closing(sqlite3.connect(self.file)) as db, db:
            db.execute("DELETE FROM meta WHERE key IN ('summary', 'whole_summary')")

    def entries(self) -> int:
        with contextlib.closing(sqlite3.connect(self.file)) as db:
            return int(db.execute("SELECT count(*) FROM entries").fetchone()[0])

    def rows(self) -> float:
        """The floor: every row, by SQLite alone."""
        began = time.monotonic()
        with contextlib.closing(sqlite3.connect(self.file)) as db:
            db.execute("SELECT host, seq, t, body FROM entries").fetchall()
        return time.monotonic() - began

    def show_first(self) -> float:
        self.forget()
        return self._verb("show", self.journal.run)

    def show(self) -> float:
        return self._verb("show", self.journal.run)

    def report(self) -> float:
        return self._verb("report", self.journal.run, "-o", str(self._folder / "run.html"))

    def export(self, kind: str) -> Callable[[], float]:
        path = str(self._folder / f"export-{kind}")
        return lambda: self._verb("export", self.journal.run, "--format", kind, "-o", path)

    def tensorboard(self) -> float:
        """The peer: what TensorBoard takes to load the same curves."""
        self.export("tensorboard")()
        folder = self._folder / "export-tensorboard" / self.journal.run
        return self._run([sys.executable, "-c", READ_BACK, str(folder)])

    def page_bytes(self) -> int:
        return (self._folder / "run.html").stat().st_size

    def _verb(self, *words: str) -> float:
        return self._run([sys.executable, "-m", "distconsole", *words])

    def _run(self, command: list[str]) -> float:
        began, before = time.monotonic(), _children_cpu_seconds()
        subprocess.run(command, env=self._environment, check=True, capture_output=True)
        self.cpu_seconds = _children_cpu_seconds() - before
        return time.monotonic() - began


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def seek_seconds(past: Past, folder: Path) -> dict[str, Any]:
    """Read the run as ``replay`` does, then go to moments of it at random."""
    with RunStore(past.file.parent).open(RunId(past.journal.run)) as run_file:
        began = time.monotonic()
        recording = Recording(run_file, folder)
        while recording.read(128):
            pass
        read = time.monotonic() - began
        chance = random.Random(1)
        spans = []
        for _ in range(SEEKS):
            t = chance.uniform(recording.start, recording.end)
            began = time.monotonic()
            recording.at(t)
            spans.append(time.monotonic() - began)
        recording.close()
    tail = Tail.of(spans)
    return {
        "read_seconds": read,
        "median_seconds": tail.median,
        "p99_seconds": tail.p99,
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


class Many:
    """Ten thousand kept runs, all alike but for their names."""

    def __init__(self, folder: Path) -> None:
        self._store = RunStore(folder / "many" / "distconsole" / "runs")
        seed = Journal(run="seed-0000", hosts=1, seconds=3)
        seed.write(self._store)
        path = self._store.folder / "seed-0000.db"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        content = path.read_bytes()
        for number in range(RUNS - 1):
            (self._store.folder / f"run-{number:05d}.db").write_bytes(content)

    def list(self) -> float:
        began = time.monotonic()
        assert sum(1 for _ in list_summaries(self._store)) == RUNS
        return time.monotonic() - began

    def unseen(self) -> int:
        """How many have not been looked into."""
        return sum(not each.whole for each in self._store.catalogue.read().values())

    def list_first(self) -> float:
        (self._store.folder / NAME).unlink(missing_ok=True)
        return self.list()


def measure(rounds: int = 5, records: int = 1_000_000) -> dict[str, Any]:
    """Open the run in every way, ``rounds`` times."""
    with tempfile.TemporaryDirectory(prefix="bench-past-") as name:
        folder = Path(name)
        past, many = Past(folder, records), Many(folder)
        ways: dict[str, Callable[[], float]] = {
            **methods(past, ("rows", "show_first", "show", "report", "tensorboard")),
            **{f"export_{kind}": past.export(kind) for kind in EXPORTS},
        }
        past.show()
        cpu: dict[str, list[float]] = defaultdict(list)

        def noted(kind: str) -> float:
            seconds = ways[kind]()
            cpu[kind].append(past.cpu_seconds if kind != "rows" else seconds)
            return seconds

        figures = compare({kind: partial(noted, kind) for kind in ways}, rounds, LINES, CPU=cpu)
        first = [many.list_first() for _ in range(rounds)]
        while many.unseen():
            many.list()
        return {
            **figures,
            "seek": seek_seconds(past, folder),
            "list_first_seconds": Spread.of(first),
            "list_seconds": Spread.of([many.list() for _ in range(rounds)]),
            "records": past.journal.seconds * past.journal.world * STEPS_A_WINDOW,
            "entries": past.entries(),
            "file_bytes": past.file.stat().st_size,
            "page_bytes": past.page_bytes(),
        }


def rows(figures: Figures) -> list[Row]:
    seek, page = figures["seek"], f"its report {figures['page_bytes'] / 1024:,.0f} KiB"
    size = f"{figures['records']:,} records, {figures['entries']:,} entries"
    return [
        Row(f"past run of {size}", f"{figures['file_bytes'] / MIB:,.0f} MiB, {page}"),
        Row(
            "past run: replay goes to a moment",
            f"{1000 * seek['median_seconds']:.0f} ms, p99 {1000 * seek['p99_seconds']:.0f} ms",
            f"read once in {seek['read_seconds']:.2f} s",
            *at_most(SEEK_SECONDS, seek["p99_seconds"]),
        ),
        Row(
            f"list of {RUNS:,} runs",
            f"{text(figures['list_seconds'])} s",
            f"all of them for the first time {text(figures['list_first_seconds'])} s",
        ),
        *rows_of_turns(figures),
    ]
