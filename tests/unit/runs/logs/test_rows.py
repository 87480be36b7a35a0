"""Lines by number, filtered and folded: nothing lost, no rank's order changed, memory bounded.
Lines are counted by speaker, level and time, in bounded room; and who prints a flood.
Claims about lists whose older part lies on the disk.
"""

import json
import os
import random
import re
import threading
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import pytest

from distconsole.model.names import parse_ranks
from distconsole.model.run_events import LogLine
from distconsole.model.time_text import parse_since
from distconsole.runs.logs.buffer import HELD_CHARS, LINE_CHARS, LogBuffer, said_by
from distconsole.runs.logs.counts import MAX_BINS, LogCounts, Pace
from distconsole.runs.logs.filter import exchange_word, parse_filter
from distconsole.runs.logs.fold import FOLD_SECONDS, REPEAT_SECONDS, with_placeholders
from distconsole.runs.logs.levels import Level, LevelWatch
from distconsole.runs.logs.rows import LogRows, rows_of
from distconsole.runs.logs.spill import BLOCK, SpilledList
from fakes import scenes

when = attrgetter("t")
HELD_LINES = HELD_CHARS // LINE_CHARS

CASES = [
    ("INFO:root:fine", Level.PLAIN),
    ("no errors were found", Level.PLAIN),
    ("error_rate 0.3", Level.PLAIN),
    ("loss 0.3 error 0.2", Level.PLAIN),
    ("2026-11-22 02:50:37 ERROR something", Level.ERROR),
    ("RuntimeError: CUDA error: out of memory", Level.ERROR),
    ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Level.ERROR),
    ("node1:55:55 [0] misc/socket.cc:50 NCCL WARN Connection refused", Level.WARN),
    ("UserWarning: lr_scheduler.step() before optimizer.step()", Level.WARN),
    ("Segmentation fault (core dumped)", Level.ERROR),
    ("terminate called after throwing an instance of 'c10::Error'", Level.ERROR),
    ("Fatal Python error: Aborted", Level.ERROR),
    ("error: cannot open data", Level.ERROR),
    ("KeyboardInterrupt", Level.ERROR),
]


def line(rank: int, text: str, t: float = 0.0, stream: str = "out") -> LogLine:
    return LogLine(t=t, run="r", host=f"n{rank // 4}", stream=stream, line=text, rank=rank)


def shown(rows: LogRows) -> list[tuple[str, tuple[int, ...], int]]:
    found = []
    for number in range(len(rows)):
        row = rows.row(number)
        head = rows.line_of(row)
        assert head is not None
        said = said_by(row.who, rows.book.speakers)
        found.append((row.text or head.text, said.ranks, row.count))
    return found


def all_rows(book: LogBuffer, **options: object) -> LogRows:
    rows = LogRows(book, **options)  # type: ignore[arg-type]
    while not rows.advance(1.0):
        pass
    return rows


def book_of(*lines: LogLine, folder: Path | None = None) -> LogBuffer:
    book = LogBuffer(folder)
    for each in lines:
        book.add(each)
    return book


def test_equal_lines_within_seconds_are_one_and_others_are_not() -> None:
    rows = rows_of(
        [
            line(0, "epoch 1"),
            line(1, "epoch 1", 1.0),
            line(0, "epoch 1", 1.5),
            line(2, "epoch 1", FOLD_SECONDS + 0.1),
            line(1, "epoch 1", 1.6, "err"),
        ]
    )
    assert shown(rows) == [("epoch 1", (0, 1), 3), ("epoch 1", (2,), 1), ("epoch 1", (1,), 1)]


def test_folding_changes_the_order_of_no_rank_and_loses_no_line() -> None:
    chance = random.Random(3)
    said: dict[int, list[str]] = {rank: [] for rank in range(6)}
    lines = []
    for at in range(4000):
        rank, text = chance.randrange(6), chance.choice("abcd")
        said[rank].append(text)
        lines.append(line(rank, text, at / 100))
    rows = rows_of(lines)
    assert len(rows) < len(lines) * 0.8
    for rank, wanted in said.items():
        found = [text for text, ranks, _ in shown(rows) if rank in ranks]
        assert [text for text, _ in groupby(found)] == [text for text, _ in groupby(wanted)]
    assert sum(count for _, _, count in shown(rows)) == len(lines)


def test_ranks_that_say_the_same_in_turn_are_folded_line_by_line() -> None:
    blocks = [line(rank, text) for rank in range(3) for text in ("a", "b", "a", "b")]
    assert shown(rows_of(blocks)) == [(text, (0, 1, 2), 3) for text in "abab"]


def test_what_a_rank_repeats_is_one_row_with_its_first_and_last_time_though_others_print() -> None:
    flood = [line(3, "nan", at / 1000) for at in range(5000)]
    rows = rows_of(sorted([*flood, line(0, "step 1", 1.0), line(0, "step 2", 2.0)], key=when))
    assert shown(rows) == [("nan", (3,), 5000), ("step 1", (0,), 1), ("step 2", (0,), 1)]
    row = rows.row(0)
    assert row.repeated
    assert (row.t, row.until) == (0.0, 4.999)


def test_what_goes_on_begins_a_new_row_now_and_then_where_others_print() -> None:
    wait = REPEAT_SECONDS / 4
    alone = [line(0, "waiting", at * wait) for at in range(40)]
    assert shown(rows_of(alone)) == [("waiting", (0,), 40)]
    assert shown(rows_of([line(0, "saved", 0.0), line(0, "saved", 60.0)])) == 2 * [
        ("saved", (0,), 1)
    ]
    others = [line(1, f"step {at}", at * wait) for at in range(40)]
    both = shown(rows_of(sorted([*alone, *others], key=when)))
    assert [count for text, _, count in both if text == "waiting"] == 8 * [5]


def test_numbers_that_differ_become_a_placeholder_where_asked() -> None:
    book = book_of(*(line(rank, f"rank {rank} of 4: loss 1e-{rank} at 7") for rank in range(4)))
    assert len(all_rows(book)) == 4
    assert shown(all_rows(book, numbers=True)) == [("rank # of 4: loss # at 7", (0, 1, 2, 3), 4)]
    assert with_placeholders("#1 of 4", "#2 of 4") == "## of 4"


@pytest.mark.parametrize(("text", "level"), CASES)
def test_a_line_says_how_bad_it_is(text: str, level: Level) -> None:
    assert LevelWatch().of("x", text) == level


def test_a_traceback_is_one_error_of_its_rank() -> None:
    watch = LevelWatch()
    text = (
        "[rank1]: Traceback (most recent call last):\n[rank1]:   File 'a'\n[rank1]: ValueError: x\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File 'b'\nKeyError: 1\nepoch 3"
    )
    levels = []
    for each in text.split("\n"):
        levels.append(watch.of(1, each))
        assert watch.of(2, "epoch 3") == Level.PLAIN
    error, part, plain = Level.ERROR, Level.PART, Level.PLAIN
    assert levels == [error, part, part, plain, part, part, part, part, part, plain]


@pytest.mark.parametrize("wrong", ["/(/", "since:yesterday", "5-2"])
def test_a_filter_that_cannot_be_read_says_which_word(wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(wrong.partition(":")[2] or wrong.strip("/"))):
        parse_filter(f"0-3 {wrong}", 0.0)


def test_moments_are_read_as_people_write_them() -> None:
    now = 1_763_700_000.0
    assert parse_since("1h30m", now) == now - 5400
    assert parse_since("90", now) == now - 90
    assert parse_since("1763690000", now) == 1763690000
    assert parse_since("2025-11-21T00:00:00Z", now) == 1763683200
    assert now - 86400 < parse_since("00:00", now) <= now
    assert parse_ranks("0-3,8") == ((0, 3), (8, 8))


def test_lines_beyond_what_is_held_are_read_back_from_the_disk(tmp_path: Path) -> None:
    count = 5 * HELD_LINES
    texts = [f"line {number} 日本" for number in range(count)]
    book = book_of(*(line(n % 8, text, float(n)) for n, text in enumerate(texts)), folder=tmp_path)
    assert len(book) == count
    assert list(tmp_path.iterdir()) == []  # the file has no name: nothing is left by a crash
    read: list[str] = []
    while len(read) < count:
        read += [each.text for each in book.slice(len(read), count)]
    assert read == texts
    rows = all_rows(book, wanted=parse_filter("3", 0.0))
    assert [text for text, _, _ in shown(rows)] == texts[3::8]
    assert rows.row_at(1003.0) == 125
    rows.search(re.compile("line 99[0-9] "))
    while not rows.advance(1.0):
        pass
    assert [rows.line_of(rows.row(n)).text for n in rows.found.places] == ["line 995 日本"]  # type: ignore[union-attr, arg-type]


def test_lines_of_megabytes_are_held_by_their_size_not_their_number() -> None:
    book = book_of(*(line(0, "x" * 65_536, float(n)) for n in range(1000)))
    held = sum(len(each.text) for each in book.slice(len(book) - HELD_LINES, len(book)))
    assert held <= 300 * 65_536
    first = book.get(0)
    assert len(first.text) == 65_536


def test_a_disk_that_refuses_costs_the_oldest_lines_and_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    book = book_of(*(line(0, str(n)) for n in range(2 * HELD_LINES)))
    assert book.failure == "No space left on device"
    assert book.get(0) is None
    assert 0 < book.first < len(book)
    rows = all_rows(book)
    assert shown(rows)[-1][0] == str(2 * HELD_LINES - 1)
    assert rows.lines == len(book) - book.first


def test_lines_are_counted_by_who_printed_them_and_how_bad_they_are() -> None:
    book = LogBuffer()
    for rank, text in ((0, "fine"), (1, "WARNING: low"), (1, "ValueError: no"), (1, "fine")):
        book.add(scenes.log(rank, text))
    assert [each[Level.PLAIN] for each in book.counts.by_speaker] == [1, 1]
    assert [each[Level.ERROR] for each in book.counts.by_speaker] == [0, 1]
    assert book.counts.by_level == [2, 1, 0, 1]


@pytest.mark.parametrize("spans", [[1.0] * 10, [400.0] * 50, [0.5, 9e5, 3.0], [5.0, -900.0, 5.0]])
def test_no_line_is_missing_from_the_rate_however_long_the_run_is(spans: list[float]) -> None:
    counts, t = LogCounts(), scenes.START
    for span in spans:
        t += span
        counts.add(t, 0, Level.ERROR)
    counts.add(float("nan"), 0, Level.PLAIN)
    assert sum(counts.bins.lines) == sum(counts.bins.errors) == len(spans)
    assert len(counts.bins.lines) == len(counts.bins.errors) <= MAX_BINS
    assert counts.bins.seconds * len(counts.bins.lines) >= max(0.0, t - counts.first)


def test_who_prints_most_of_a_flood_is_known_and_forgotten_when_it_ends() -> None:
    counts, pace = LogCounts(), Pace()
    pace.look(0.0, counts)
    for line in range(3000):
        counts.add(1.0, int(line % 3 == 0), Level.PLAIN)
    pace.look(0.5, counts)  # too soon
    assert pace.lines_s == 0
    pace.look(2.0, counts)
    assert (pace.lines_s, pace.most) == (1500, 0)
    pace.look(4.0, counts)
    assert pace.lines_s == 0


RANKS = re.compile(r"[\d,-]+")


@pytest.mark.parametrize(
    ("before", "word", "after"),
    [
        ("", "3", "3"),
        ("0-2 host:a err", "3", "3 host:a err"),
        ("0-2 err", "", "err"),
        ("5 /in 5 steps/ err", "7", "7 err /in 5 steps/"),
    ],
)
def test_a_choice_takes_the_place_of_its_kind_and_leaves_the_rest(
    before: str, word: str, after: str
) -> None:
    exchanged = exchange_word(before, RANKS, word)
    assert exchanged == after
    assert parse_filter(exchanged, 0.0).pattern == parse_filter(before, 0.0).pattern


def test_looked_at_twice_before_anybody_has_printed_nothing_comes() -> None:
    counts, pace = LogCounts(), Pace()
    pace.look(100.0, counts)
    pace.look(110.0, counts)
    assert (pace.lines_s, pace.most) == (0.0, None)


LONG_SECONDS = 20.0


def test_who_reads_does_not_wait_for_a_block_on_its_way_to_the_disk(tmp_path: Path) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def encode(items: list[int]) -> bytes:
        writing.set()
        assert go_on.wait(LONG_SECONDS)
        return json.dumps(items).encode()

    numbers: SpilledList[int] = SpilledList(
        encode, json.loads, max_weight=2 * BLOCK - 1, folder=tmp_path
    )
    appending = threading.Thread(target=lambda: [numbers.append(n) for n in range(2 * BLOCK)])
    read: list[int] = []

    def look() -> None:
        read.extend([numbers.get(0), numbers.get(2 * BLOCK - 1), len(numbers)])
        read.extend(numbers.slice(0, 3))

    appending.start()
    assert writing.wait(LONG_SECONDS)
    looking = threading.Thread(target=look)
    looking.start()
    looking.join(LONG_SECONDS / 10)
    waited = looking.is_alive()
    go_on.set()
    looking.join(LONG_SECONDS)
    appending.join(LONG_SECONDS)
    assert not waited
    assert read == [0, 2 * BLOCK - 1, 2 * BLOCK, 0, 1, 2]
    assert [numbers.get(n) for n in range(2 * BLOCK)] == list(range(2 * BLOCK))
    numbers.close()
