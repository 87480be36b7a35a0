"""What it costs to open a past run of a million records: ``show``, ``report`` and every ``export``; to
go to a moment of it; and to list ten thousand runs.

A record is a step of a rank, as the hook records it; the agents have made windows of a second of them,
as in a run of 64 ranks at 20 steps a second. Each verb is the program itself, started anew. Against it:
reading the rows and doing nothing, and TensorBoard's own loader on the event files exported.

``python -m benchmarks.past_cost [--json FILE] [--rounds N] [--records N]``
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.measure import Spread, Tail, alternate, spreads
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
TARGET_SECONDS = 1.0
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


def measure(rounds: int, records: int) -> dict[str, Any]:
    """Open the run in every way, ``rounds`` times."""
    folder = Path(tempfile.mkdtemp(prefix="bench-past-"))
    try:
        past = Past(folder, records)
        ways: dict[str, Callable[[], float]] = {
            "rows": past.rows,
            "show_first": past.show_first,
            "show": past.show,
            "report": past.report,
            **{
                f"export_{kind}": past.export(kind)
                for kind in ("jsonl", "csv", "tensorboard", "prometheus")
            },
            "tensorboard": past.tensorboard,
        }
        many = Many(folder)
        past.show()
        cpu: dict[str, list[float]] = {kind: [] for kind in ways}

        def noted(kind: str, way: Callable[[], float]) -> Callable[[], float]:
            def run() -> float:
                seconds = way()
                cpu[kind].append(past.cpu_seconds if kind != "rows" else seconds)
                return seconds

            return run

        found = alternate({kind: noted(kind, way) for kind, way in ways.items()}, rounds)
        first = [many.list_first() for _ in range(rounds)]
        while many.unseen():
            many.list()
        return {
            "seek": seek_seconds(past, folder),
            "runs": RUNS,
            "list_first_seconds": Spread.of(first),
            "list_seconds": Spread.of([many.list() for _ in range(rounds)]),
            "records": past.journal.seconds * past.journal.world * STEPS_A_WINDOW,
            "entries": past.entries(),
            "file_bytes": past.file.stat().st_size,
            "page_bytes": past.page_bytes(),
            "target_seconds": TARGET_SECONDS,
            "seconds": spreads(found),
            "cpu_seconds": spreads(cpu),
        }
    finally:
        shutil.rmtree(folder)


def rows(figures: Figures) -> list[Row]:
    seconds, cpu = figures["seconds"], figures["cpu_seconds"]
    of = f"past run of {figures['records']:,} records ({figures['entries']:,} entries)"
    rows = f"its rows by SQLite alone {text(seconds['rows'])} s"
    target = figures["target_seconds"]
    wanted_text = f"≤ {target:g} s"
    named = {
        "show": ("show", rows, True),
        "show_first": ("show, of a run that was not followed from here to its end", "", True),
        "report": (f"report, {figures['page_bytes'] / 1024:,.0f} KiB", "", False),
        "export_jsonl": ("export jsonl", "", False),
        "export_csv": ("export csv, all tables", "", False),
        "export_tensorboard": (
            "export tensorboard",
            f"TensorBoard loads it in {text(seconds['tensorboard'])} s",
            False,
        ),
        "export_prometheus": ("export prometheus", "", False),
    }
    seek = figures["seek"]
    more = [
        Row(
            f"{of}: replay goes to a moment",
            f"{1000 * seek['median_seconds']:.0f} ms, p99 {1000 * seek['p99_seconds']:.0f} ms",
            f"read once in {seek['read_seconds']:.2f} s",
            wanted_text,
            seek["p99_seconds"] <= SEEK_SECONDS,
        ),
        Row(
            f"list of {figures['runs']:,} runs",
            f"{text(figures['list_seconds'])} s",
            f"all of them for the first time {text(figures['list_first_seconds'])} s",
        ),
    ]
    return more + [
        Row(
            f"{of}: {words}",
            f"{text(seconds[kind])} s (CPU {text(cpu[kind])} s)",
            against,
            wanted_text if wanted else "",
            seconds[kind]["median"] <= target if wanted else None,
        )
        for kind, (words, against, wanted) in named.items()
    ]


if __name__ == "__main__":
    run_alone("past_cost", __doc__, measure, rows, rounds=5, records=1_000_000)
