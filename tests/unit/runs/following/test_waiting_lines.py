"""Lines that records pass: whose come first, what becomes of too many, and what comes last.
Whatever the order in which hosts' journals come, the picture at the end is that of a replay.
"""

import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import LinkLostError
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import RunEvents
from distconsole.rpc.frames import EndEntry, Entries, LogEntry
from distconsole.runs.following import feed as feeds
from distconsole.runs.following import follow as follows
from distconsole.runs.following.follow import follow
from distconsole.runs.following.waiting_lines import (
    FLOOD_BYTES,
    MOST_BYTES,
    Source,
    WaitingLine,
    WaitingLines,
)
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_timeline
from distconsole.runs.timeline import RunTimeline
from fakes.journals import STEPS_A_WINDOW, Journal
from fakes.streams import PlayedJournal, Step

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


PLAYED = Journal(hosts=3, per_host=2, seconds=90, slow=3, lockstep=True)
RECORD = RunRecord(RunId(PLAYED.run), started=PLAYED.started, hosts=PLAYED.names)
LAST_STEP = PLAYED.seconds * STEPS_A_WINDOW - 1
APART = 0.13
"""Seconds between what hosts tell of the same moment: which is first is certain."""


class Late(PlayedJournal):
    """Has nothing to tell until it is let go."""

    def __init__(self, script: list[Step], clock_offset: float) -> None:
        super().__init__([*script, None], clock_offset)
        self._waits = True

    def take(self, timeout: float | None) -> Entries | None:
        return None if self._waits else super().take(timeout)

    def let_go(self) -> None:
        self._waits = False
        self._listener()


class Watcher:
    """Follows a run and folds what it is told, as a front end does."""

    def __init__(self) -> None:
        self.timeline = RunTimeline()
        self.retold = 0
        self.unordered = False

    def retell(self, events: Iterator[RunEvents]) -> None:
        assert self.unordered
        self.retold += 1
        self.timeline = RunTimeline()
        for event in events:
            self.timeline.apply(event)

    def note(self, _behind: bool, unordered: bool) -> None:
        self.unordered = unordered

    def follow(self, store: RunStore, open_stream: Any, late: Late | None = None) -> None:
        for event in follow(store, RECORD, open_stream, note=self.note, retell=self.retell):
            self.timeline.apply(event)
            if late is not None and self.timeline.steps == LAST_STEP:
                late.let_go()


def told_by(host: str) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in PLAYED.entries() if each.host == host]


def pieces(entries: list[dict[str, Any]], dice: random.Random, most: int) -> list[Step]:
    cuts = sorted({0, len(entries), *(dice.randrange(len(entries)) for _ in range(most))})
    return [{"entries": entries[begin:end]} for begin, end in pairwise(cuts)]


def assert_as_replayed(timeline: RunTimeline, store: RunStore, *, unended: bool = False) -> None:
    with store.open(RECORD.run) as run_file:
        replayed = stored_timeline(run_file)
    for each in (timeline, replayed):
        each.close()
    assert timeline.throughput.points() == replayed.throughput.points()
    assert timeline.step_ms.series.points() == replayed.step_ms.series.points()
    assert timeline.gpu_use.series.points() == replayed.gpu_use.series.points()
    assert timeline.metrics["loss"].points() == replayed.metrics["loss"].points()
    assert timeline.best == replayed.best
    assert timeline.metric_last == replayed.metric_last
    assert timeline.mean_samples_s == replayed.mean_samples_s
    assert timeline.step_times == replayed.step_times
    assert timeline.findings == replayed.findings
    if not unended:
        assert timeline.end == replayed.end is not None
        assert {rank: asdict(view) for rank, view in timeline.ranks.items()} == {
            rank: asdict(view) for rank, view in replayed.ranks.items()
        }


@pytest.mark.parametrize("cuts", [(0, 0, 0), (9, 9, 9), (0, 40, 3)])
def test_pasts_of_several_hosts_are_told_in_the_order_of_time(
    tmp_path: Path, cuts: tuple[int, ...]
) -> None:
    store, dice, watcher = RunStore(tmp_path), random.Random(1), Watcher()
    journals = {
        host: PlayedJournal([*pieces(told_by(host), dice, cuts[place]), None], APART * place)
        for place, host in enumerate(PLAYED.names)
    }
    watcher.follow(store, lambda host, _after, _by: journals[host])
    assert_as_replayed(watcher.timeline, store)
    assert watcher.retold == 0
    assert watcher.timeline.metric_last["loss"].ranks == PLAYED.world


@pytest.mark.parametrize("late", range(3))
@pytest.mark.parametrize("broken", [False, True])
def test_a_past_that_comes_after_the_others_is_told_again_with_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int, broken: bool
) -> None:
    monkeypatch.setattr(feeds, "HOLD_SECONDS", 0.1)
    store, dice, watcher = RunStore(tmp_path), random.Random(late), Watcher()
    scripts = [pieces(told_by(host), dice, 9) for host in PLAYED.names]
    middle = len(scripts[late]) // 2 if broken else 0
    held = Late(scripts[late][middle:], APART * late)
    connections = {
        host: [PlayedJournal([*scripts[place], None], APART * place)]
        for place, host in enumerate(PLAYED.names)
    }
    connections[PLAYED.names[late]] = [held]
    if broken:
        first = PlayedJournal(
            [*scripts[late][:middle], LinkLostError("cable pulled")], APART * late
        )
        connections[PLAYED.names[late]] = [first, held]
    watcher.follow(store, lambda host, _after, _by: connections[host].pop(0), held)
    assert_as_replayed(watcher.timeline, store)
    assert watcher.retold
    assert not watcher.unordered


def test_a_host_that_never_comes_leaves_the_picture_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follows, "GIVE_UP_SECONDS", 0.0)
    store, watcher = RunStore(tmp_path), Watcher()

    def open_stream(host: HostName, _after: int, _by: str) -> PlayedJournal:
        if host == PLAYED.names[2]:
            raise LinkLostError("no route to host")
        place = PLAYED.names.index(host)
        return PlayedJournal([{"entries": told_by(host)}, None], APART * place)

    watcher.follow(store, open_stream)
    assert_as_replayed(watcher.timeline, store, unended=True)
    assert watcher.retold == 0
