"""Lines are counted by speaker, level and time, in bounded room; and who prints a flood."""

from __future__ import annotations

import re

import pytest

from distconsole.runs.logs.buffer import LogBuffer
from distconsole.runs.logs.counts import MAX_BINS, LogCounts, Pace
from distconsole.runs.logs.filter import exchange_word, parse_filter
from distconsole.runs.logs.levels import Level
from fakes import scenes


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
