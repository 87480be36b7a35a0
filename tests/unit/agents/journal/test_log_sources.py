"""A log is passed on in whole lines; a rank that floods one is told at a pace that all others can bear, and is named."""

import random
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
from distconsole_agent.journal.log_sources import LogSlicer, LogSources
from suite.seeds import seeds

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
def test_what_is_not_shown_at_the_end_is_counted_with_its_path(logs: Logs, more: int) -> None:
    logs.write(0, LAST_LOG_BYTES + more)
    entries: list[dict[str, Any]] = []
    while ends := logs.sources.take_ends(logs.now, logs.now, None, over=True):
        entries += ends
    (note,) = [e for e in entries if e["kind"] == "note"]
    told = size_of(entries)
    size = (logs.folder / "rank-0.out").stat().st_size
    assert LAST_LOG_BYTES - len(LINE) <= told <= LAST_LOG_BYTES
    assert told % len(LINE) == 0
    counts = f"{size - told:,} bytes ({(size - told) // len(LINE):,} whole lines)"
    assert f"{counts} of rank 0 are not shown" in note["summary"]
    assert str(logs.folder / "rank-0.out") in note["hint"]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.out"
    path.touch()
    return path


@pytest.fixture
def tail(log: Path) -> Iterator[LogSlicer]:
    tail = LogSlicer(str(log), 0)
    yield tail
    tail.close()


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def taken(tail: LogSlicer, log: Path, now: float = 0.0, *, final: bool = False) -> list[bytes]:
    whole = log.read_bytes()
    return [whole[s.offset : s.offset + s.length] for s in tail.take(now, final=final)]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param(
            [(b"one\ntwo\nthr", 0, b"one\ntwo\n"), (b"ee\n", 0, b"three\n"), (b"", 0, b"")],
            id="whole lines at once",
        ),
        pytest.param(
            [(b"Password: ", 10.0, b""), (b"", 10.9, b""), (b"", 11.0, b"Password: ")],
            id="a line without an end after a second",
        ),
        pytest.param([(b".", n / 10, b"") for n in range(30)], id="a line that grows waits on"),
        pytest.param([(b"\r 10%\r 20%", 0, b"\r 10%\r")], id="a progress bar by its returns"),
        pytest.param([(b"one\r", 0, b""), (b"\n", 0, b"one\r\n")], id="no return without newline"),
        pytest.param(
            [
                ("é€😀".encode()[:-1], 0.0, b""),
                (b"", 5.0, "é€".encode()),
                ("😀".encode()[-1:], 5.0, b""),
                (b"", 9.0, "😀".encode()),
            ],
            id="no character is cut",
        ),
        pytest.param([(b"last \xf0\x9f", None, b"last \xf0\x9f")], id="at the end all is taken"),
    ],
)
def test_what_was_printed_is_passed_on(
    tail: LogSlicer, log: Path, steps: list[tuple[bytes, float | None, bytes]]
) -> None:
    for added, now, expected in steps:
        add(log, added)
        found = taken(tail, log, final=True) if now is None else taken(tail, log, now)
        assert b"".join(found) == expected


def test_long_text_is_cut_at_lines_or_at_characters(tail: LogSlicer, log: Path) -> None:
    add(log, b"x" * 100 + b"\n" + "€".encode() * 60_000 + b"\n" + b"y" * 200_000)
    pieces: list[bytes] = []
    while more := taken(tail, log, final=True):
        pieces += more
    assert b"".join(pieces) == log.read_bytes()
    assert all(len(piece) <= LOG_SLICE_BYTES for piece in pieces)
    for piece in pieces:
        piece.decode()


@pytest.mark.parametrize("seed", seeds(8, always=2))
def test_slices_join_without_a_gap(tail: LogSlicer, log: Path, seed: int) -> None:
    chance = random.Random(seed)
    alphabet = [b"\n", b"\r", b"\r\n", "é".encode(), "😀".encode(), b"\xff", b"word ", b"z" * 9000]
    pieces: list[bytes] = []
    now = 0.0
    for _ in range(200):
        add(log, b"".join(chance.choices(alphabet, k=chance.randrange(6))))
        now += chance.choice((0.1, 0.1, 0.1, 2.0))
        pieces += taken(tail, log, now)
    pieces += taken(tail, log, now, final=True)
    assert b"".join(pieces) == log.read_bytes()


def test_a_log_goes_on_after_it_was_emptied_or_from_an_offset(tail: LogSlicer, log: Path) -> None:
    add(log, b"a long first line\n")
    taken(tail, log)
    log.write_bytes(b"")
    assert taken(tail, log) == []
    add(log, b"again\ntwo\n")
    assert b"".join(taken(tail, log)) == b"again\ntwo\n"
    from_offset = LogSlicer(str(log), 6)
    assert taken(from_offset, log) == [b"two\n"]
    from_offset.close()
