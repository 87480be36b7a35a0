"""What it costs an agent to keep a run's journal, at 1 Hz with 8 ranks: with checksums, signatures
and syncs, against the same journal without them, in one run.

``python -m benchmarks.journal_cost [--json FILE] [--rounds N] [--seconds N]``. Each turn is a process
of its own that appends the batches of so many seconds, as fast as it can; its processor time, that of
its threads and of its system calls included, is what counts. Beside it stands how long an append
took at longest while files are synced on the same disk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, run_alone, text
from benchmarks.measure import Spread, ratios
from distconsole_agent.journal import journal as journal_module
from distconsole_agent.journal.journal import Journal

RANKS = 8
TARGET = 1.1
"""Of the same journal without checksums, signatures and syncs."""


def batches(second: int) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Return what an agent appends in one second: windows and a sample, and in ten others lines."""
    t = 1_763_700_000.0 + second
    points = [[20 * second + step, 0.5 / (1 + second), 32.0] for step in range(0, 20, 2)]
    windows = [
        {
            "t": t, "kind": "window", "rank": rank, "step": 20 * second, "steps": 20, "skipped": 0,
            "step_ms": [50.1, 61.2], "data_ms": 2.1, "forward_ms": 15.3, "backward_ms": 29.8,
            "optimizer_ms": 3.0, "samples_s": 640.0, "metrics": {"loss": 0.5 / (1 + second)},
            "dropped": 0, "points": {"loss": points},
        }
        for rank in range(RANKS)
    ]  # fmt: skip
    gpu = {"util": 97, "mem_used": 61 << 30, "mem_total": 80 << 30, "temp_c": 66, "power_w": 612.5}
    sample = {
        "t": t,
        "kind": "sample",
        "node": {"cpu": 31.5, "mem_used": 1 << 37},
        "gpus": [gpu] * 8,
    }
    marks = {"rings": {f"rank-{rank}": [20 * second, second] for rank in range(RANKS)}}
    line = {"t": t, "kind": "log", "rank": 0, "stream": "out", "offset": 80 * second, "length": 80, "file": "rank-0.out"}  # fmt: skip
    printed = {"logs": {"rank-0.out": 80 * (second + 1)}}
    return [([*windows, sample], marks), ([line], printed)]


def without_guarantees() -> None:
    """Have this process write journals as before: no checksums, and nothing is synced."""
    encoder = json.JSONEncoder(separators=(",", ":"))

    def plain(value: dict[str, Any]) -> bytes:
        return encoder.encode(value).encode("ascii") + b"\n"

    journal_module.dump = plain
    journal_module.SYNCED_KINDS = frozenset()
    os.fsync = lambda _fd: None


def be_agent(kind: str, seconds: int) -> None:
    """Append, and print the processor time of one second, and the longest time of an append."""
    if kind == "plain":
        without_guarantees()
    told = [batches(second) for second in range(seconds)]
    with tempfile.TemporaryDirectory(prefix="journal-cost-", dir=Path.cwd()) as folder:
        journal = Journal(folder)
        assert journal.open_writer()
        longest, before = 0.0, time.process_time()
        for second, both in enumerate(told):
            for entries, marks in both:
                if (
                    second % 600 == 599
                ):  # a rank fails every ten minutes, far more often than any does
                    entries = [*entries, {"t": 1.0, "kind": "failure", "rank": 0}]
                began = time.perf_counter()
                journal.append(entries, marks)
                longest = max(longest, time.perf_counter() - began)
        journal.sync_with([], 60)
        spent = time.process_time() - before
        journal.close()
    print(json.dumps({"cpu_seconds": spent / seconds, "longest_seconds": longest}))


def turn(kind: str, seconds: int) -> dict[str, float]:
    """Run one process to its end."""
    command = [sys.executable, "-m", "benchmarks.journal_cost", "--be", kind, str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(rounds: int, seconds: int) -> dict[str, Any]:
    """Measure both ways ``rounds`` times, in turns."""
    turns: dict[str, Callable[[], dict[str, float]]] = {
        kind: partial(turn, kind, seconds) for kind in ("safe", "plain")
    }
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in turns}
    for number in range(rounds):
        for kind in turns if number % 2 == 0 else reversed(turns):
            found[kind].append(turns[kind]())
    cpu = {kind: [each["cpu_seconds"] for each in all_] for kind, all_ in found.items()}
    return {
        "seconds": seconds,
        "target": TARGET,
        "cpu_ms_a_second": {
            kind: Spread.of([1e3 * one for one in each]) for kind, each in cpu.items()
        },
        "longest_append_ms": {
            kind: Spread.of([1e3 * each["longest_seconds"] for each in all_])
            for kind, all_ in found.items()
        },
        "ratio": ratios(cpu["safe"], cpu["plain"]),
    }


def rows(figures: Figures) -> list[Row]:
    cpu, longest = figures["cpu_ms_a_second"], figures["longest_append_ms"]
    over, target = figures["ratio"], figures["target"]
    return [
        Row(
            f"journal of {RANKS} ranks at 1 Hz, CPU ms a second",
            f"{text(cpu['safe'], 1, 3)}, {text(over)} of plain",
            f"no checksums, no sync {text(cpu['plain'], 1, 3)}",
            f"≤ {target} of plain",
            over["median"] <= target,
        ),
        Row(
            "longest append of the drain's thread, ms",
            text(longest["safe"], 1, 1),
            f"no checksums, no sync {text(longest['plain'], 1, 1)}",
        ),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--be"]:
        be_agent(sys.argv[2], int(sys.argv[3]))
    else:
        run_alone("journal_cost", __doc__, measure, rows, rounds=7, seconds=1800)
