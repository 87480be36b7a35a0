"""A rank that floods its log is told at a pace that all others can bear, and is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.limits import (
    FLOOD_BYTES,
    LAST_LOG_BYTES,
    LOG_COST_AT_ONCE,
    LOG_COST_PER_SECOND,
    LOG_SLICE_BYTES,
)
from distconsole_agent.journal.log_sources import LogSources

LINE = b"0123456789 and some words to fill it\n"


class Logs:
    """Logs that a test writes, and a clock that it moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.sources = LogSources(str(folder), "node1")

    def write(self, rank: int, size: int) -> None:
        with (self.folder / f"rank-{rank}.out").open("ab") as file:
            file.write(LINE * (size // len(LINE)))
        self.sources.open({})

    def take(self, seconds: float = 0.1) -> list[dict[str, Any]]:
        self.now += seconds
        return self.sources.take(self.now, self.now)


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[Logs]:
    logs = Logs(tmp_path)
    yield logs
    logs.sources.close()


def size_of(entries: list[dict[str, Any]], rank: int = 0) -> int:
    return sum(e["length"] for e in entries if e["kind"] == "log" and e["rank"] == rank)


def test_a_flood_takes_no_more_of_the_journal_than_it_may(logs: Logs) -> None:
    logs.write(0, 64 << 20)
    taken = size_of(logs.take()) + sum(size_of(logs.take()) for _ in range(100))
    assert 0 < taken < LOG_COST_AT_ONCE + 10.1 * LOG_COST_PER_SECOND + 101 * LOG_SLICE_BYTES


def test_who_prints_little_does_not_wait_for_who_floods(logs: Logs) -> None:
    logs.write(0, 64 << 20)
    for _ in range(20):
        logs.take()
    logs.write(1, 1000)
    assert size_of(logs.take(), rank=1) == 1000 // len(LINE) * len(LINE)


def test_a_flood_is_named_once_with_its_rate(logs: Logs) -> None:
    notes = []
    for _ in range(50):
        logs.write(3, 2 << 20)
        notes += [e for e in logs.take(0.5) if e["kind"] == "note"]
    (note,) = notes
    assert (note["check"], note["rank"]) == ("run.output_flood", 3)
    assert re.match(r"rank 3 prints 113,\d{3} lines/s \(4.2 MB/s\) on node1: ", note["summary"])


def test_the_end_of_a_rank_does_not_wait_for_its_flood(logs: Logs) -> None:
    logs.write(0, 64 << 20)
    logs.write(1, FLOOD_BYTES // 2)
    assert logs.sources.take_ends(logs.now, logs.now, 0, over=False) == []
    assert size_of(logs.sources.take_ends(logs.now, logs.now, 1, over=False), rank=1) > 0


@pytest.mark.parametrize("more", [len(LINE), 1 << 18, 20 << 20, (20 << 20) + 1000])
def test_what_is_not_told_at_the_end_is_counted_and_where_it_lies_is_said(
    logs: Logs, more: int
) -> None:
    logs.write(0, LAST_LOG_BYTES + more)
    entries: list[dict[str, Any]] = []
    while ends := logs.sources.take_ends(logs.now, logs.now, None, over=True):
        entries += ends
    (note,) = [e for e in entries if e["kind"] == "note"]
    told = size_of(entries)
    size = (logs.folder / "rank-0.out").stat().st_size
    assert LAST_LOG_BYTES - len(LINE) <= told <= LAST_LOG_BYTES
    assert told % len(LINE) == 0
    missing = (size - told) // len(LINE)
    assert f"{missing:,} lines ({size - told:,} bytes) of rank 0 are not shown" in note["summary"]
    assert str(logs.folder / "rank-0.out") in note["hint"]
