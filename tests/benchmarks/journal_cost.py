"""What it costs an agent to keep a run's journal, at 1 Hz with 8 ranks: with checksums, signatures
and syncs, against the same journal without them, in one run.

Each turn is a process
of its own that appends the batches of so many seconds, as fast as it can; its processor time, that of
its threads and of its system calls included, is what counts. Beside it stands how long an append
took at longest while files are synced on the same disk.
"""

import json
import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.alone import Figures, Row, at_most, program, text
from benchmarks.measure import alternate, ratios, spreads
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


def be(kind: str, seconds: str) -> None:
    """Append, and print the processor time of one second, and the longest time of an append."""
    if kind == "plain":
        without_guarantees()
    told = [batches(second) for second in range(int(seconds))]
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
    print(json.dumps({"cpu_seconds": spent / int(seconds), "longest_seconds": longest}))


def turn(kind: str, seconds: int) -> dict[str, float]:
    """Run one process to its end."""
    command = program("journal_cost", kind, seconds)
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def measure(rounds: int = 7, seconds: int = 1800) -> dict[str, Any]:
    """Measure both ways ``rounds`` times, in turns."""
    longest: dict[str, list[float]] = {"safe": [], "plain": []}

    def cpu_ms(kind: str) -> float:
        figures = turn(kind, seconds)
        longest[kind].append(1e3 * figures["longest_seconds"])
        return 1e3 * figures["cpu_seconds"]

    cpu = alternate({kind: partial(cpu_ms, kind) for kind in longest}, rounds)
    return {
        "seconds": seconds,
        "target": TARGET,
        "cpu_ms_a_second": spreads(cpu),
        "longest_append_ms": spreads(longest),
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
            *at_most(target, over["median"], " of plain"),
        ),
        Row(
            "longest append of the drain's thread, ms",
            text(longest["safe"], 1, 1),
            f"no checksums, no sync {text(longest['plain'], 1, 1)}",
        ),
    ]
