"""Lines that records pass: whose come first, what becomes of too many, and what comes last."""

from __future__ import annotations

import re
from typing import Any

from distconsole.model.names import HostName
from distconsole.rpc.frames import EndEntry, LogEntry
from distconsole.runs.following.waiting_lines import (
    FLOOD_BYTES,
    MOST_BYTES,
    Source,
    WaitingLine,
    WaitingLines,
)

A, B = HostName("a"), HostName("b")
SLICE = "0123456789 and some words to fill it, as a flood does to no end\n" * 1024
"""65,536 characters."""

SLICES = MOST_BYTES // len(SLICE)


def printed(number: int, text: str = SLICE, rank: int = 0) -> LogEntry:
    return LogEntry(seq=number, t=float(number), rank=rank, stream="out", offset=0, text=text)


def end(number: int) -> EndEntry:
    return EndEntry(seq=number, t=float(number), state="succeeded", exit_code=0, seconds=1.0)


def taken(lines: WaitingLines) -> list[WaitingLine]:
    found = []
    while lines:
        found.append(lines.take())
    return found


def flooded(slices: int) -> WaitingLines:
    lines = WaitingLines()
    for number in range(slices):
        lines.put(A, printed(number), float(number))
    return lines


def test_lines_come_in_the_order_of_their_times() -> None:
    lines = WaitingLines()
    for host, t in ((A, 2.0), (A, 4.0), (B, 1.0), (B, 3.0)):
        lines.put(host, printed(int(t), f"{t}\n"), t)
    assert [line.t for line in taken(lines)] == [1.0, 2.0, 3.0, 4.0]


def test_a_flood_comes_after_the_lines_of_others() -> None:
    lines = flooded(FLOOD_BYTES // len(SLICE) + 1)
    lines.put(A, printed(1000, "the last words of rank 1\n", rank=1), 1000.0)
    assert [line.t for line in taken(lines)][:2] == [1000.0, 0.0]


def test_of_a_flood_the_oldest_is_left_out_and_counted() -> None:
    more = 100
    lines = WaitingLines()
    told = {lines.put(A, printed(number), float(number)) for number in range(SLICES + more)}
    assert told == {None, (A, 0, "out")}
    lines.put(B, printed(9999, "few\n"), 9999.0)
    first, second, *rest = taken(lines)
    assert first.t == 9999.0
    assert isinstance(second.entry, LogEntry)
    mark, told = second.entry.text.split("\n", 1)
    said = re.match(r"\[distconsole: ([\d,]+) lines \(([\d,]+) characters\) are not shown", mark)
    assert said is not None
    missing = int(said[1].replace(",", ""))
    assert told == SLICE
    assert missing % 1024 == 0
    assert missing // 1024 + 1 + len(rest) == SLICES + more
    assert len(rest) > 0.95 * SLICES


def test_who_has_most_is_asked_for_once_for_many_lines_that_are_left_out() -> None:
    lines, asked = WaitingLines(most_bytes=2000 * 1000), 0

    class Asked(dict[Source, Any]):
        def items(self) -> Any:
            nonlocal asked
            asked += 1
            return super().items()

    lines._sources = Asked(lines._sources)
    left_out = 0
    for number in range(10):
        for rank in range(1000):
            left_out += lines.put(A, printed(number, "x" * 500 + "\n", rank=rank), 1.0) is not None
    said = sum(source.missing_lines for source in lines._sources.values())
    assert said > 7000
    assert asked == left_out < said / 50
    assert min(len(source.lines) for source in lines._sources.values()) >= 1


def test_the_end_of_a_host_comes_after_its_lines_and_waits_for_no_other_host() -> None:
    lines = flooded(3)
    lines.put(A, end(4), 4.0)
    lines.put(B, end(5), 5.0)
    assert [(line.host, line.t) for line in taken(lines)] == [
        (B, 5.0),
        (A, 0.0),
        (A, 1.0),
        (A, 2.0),
        (A, 4.0),
    ]


def test_a_source_that_no_longer_floods_comes_by_its_times_again() -> None:
    lines = flooded(FLOOD_BYTES // len(SLICE) + 1)
    lines.put(A, printed(1000, "few\n", rank=1), 1000.0)
    lines.put(A, printed(2000, "few\n", rank=2), 0.5)
    assert [line.t for line in taken(lines)][:4] == [0.5, 1000.0, 0.0, 1.0]


def test_a_host_has_lines_until_the_last_is_taken() -> None:
    lines = WaitingLines()
    for host, rank in ((A, 0), (A, 1), (B, 0)):
        lines.put(host, printed(1, "few\n", rank=rank), 1.0)
    assert (lines.of(A), lines.of(B)) == (True, True)
    lines.take()
    assert (lines.of(A), lines.of(B)) == (True, True)
    lines.take()
    assert (lines.of(A), lines.of(B)) == (False, True)


def test_what_comes_next_is_found_without_asking_every_source() -> None:
    lines, asked = WaitingLines(), 0
    for rank in range(2000):
        lines.put(A, printed(1, "few\n", rank=rank), float(rank))

    class Asked(dict[Source, Any]):
        def __getitem__(self, key: Source) -> Any:
            nonlocal asked
            asked += 1
            return super().__getitem__(key)

        def items(self) -> Any:
            raise AssertionError("every source is asked")

    lines._sources = Asked(lines._sources)
    assert len(taken(lines)) == 2000
    assert asked <= 3 * 2000
