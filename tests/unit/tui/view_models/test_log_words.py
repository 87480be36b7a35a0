"""What the Logs view says first: where the reader is, how bad it is, by whom, and what is missing."""

import colorsys
from dataclasses import replace as with_

import pytest
from msgspec.structs import replace
from rich.color import Color

from distconsole.model.findings import Severity
from distconsole.model.run_events import LogLine, RunFinding
from distconsole.runs.logs.counts import LogCounts, Pace
from distconsole.runs.logs.filter import parse_filter
from distconsole.runs.logs.levels import Level
from distconsole.runs.logs.rows import rows_of
from distconsole.tui.view_models.logs import Reading, missing_text, reading_verdict
from distconsole.tui.widgets.log_line import COLOURS_OF_TERMINAL, COLOURS_ON_DARK, COLOURS_ON_LIGHT
from fakes import scenes


def reading(*lines: LogLine) -> Reading:
    return Reading(rows_of(lines), Pace(), f"{len(lines)} lines")


CALM = (scenes.log(0, "fine"), scenes.log(1, "fine"))
BAD = (*CALM, scenes.log(1, "ValueError: no", stream="err"), scenes.log(0, "WARNING: low"))


def test_the_tone_is_that_of_the_worst_line_and_the_words_say_whose_it_is() -> None:
    assert reading_verdict(reading(*CALM)) == ("good", "●", "FOLLOWING  2 lines, no errors")
    tone, mark, words = reading_verdict(reading(*BAD))
    assert (tone, mark) == ("warn", "●")
    assert words == "FOLLOWING  4 lines, 1 error (of rank 1), 1 warning"
    assert reading_verdict(with_(reading(*BAD), over=True))[0] == "bad"
    later = scenes.log(0, "Killed", scenes.START + 9)
    assert "2 errors (first of rank 1)" in reading_verdict(reading(later, *BAD))[2]


def test_an_error_that_the_filter_hides_is_still_the_first() -> None:
    lines = (scenes.log(0, "error: connection closed", scenes.START + 9), *BAD)
    at = Reading(rows_of(lines, wanted=parse_filter("0", 0.0)), Pace(), "2 of 5 lines")
    assert "2 errors (first of rank 1, hidden by the filter)" in reading_verdict(at)[2]
    at = Reading(rows_of(lines, wanted=parse_filter("1", 0.0)), Pace(), "2 of 5 lines")
    assert "2 errors (first of rank 1)" in reading_verdict(at)[2]


def test_the_line_that_is_read_says_who_printed_it_and_where_to() -> None:
    at = reading(*BAD)
    words = reading_verdict(with_(at, row=at.rows.row(len(at.rows) - 2)))[2]
    assert "rank 1, stderr, line 3; " in words


@pytest.mark.parametrize("check", ["run.output_dropped", "run.output_left_out"])
def test_lines_that_are_missing_are_said_whatever_else_is(check: str) -> None:
    other = RunFinding(
        t=1, run="r", check="run.stall", severity=Severity.FAIL, hosts=(), summary="no step"
    )
    missing = missing_text([replace(other, check=check, summary="3 lines are missing"), other])
    for over in (False, True):
        at = Reading(rows_of(CALM), Pace(), "2 lines", over=over, missing=missing)
        tone, _, words = reading_verdict(at)
        assert tone == "warn"
        assert words.endswith("; 3 lines are missing")


def test_a_flood_says_who_prints_it_and_a_run_that_is_over_floods_no_more() -> None:
    at, counts = reading(*BAD), LogCounts()
    at.pace.look(0.0, counts)
    for _ in range(5000):
        counts.add(1.0, 1, Level.PLAIN)
    at.pace.look(1.0, counts)
    assert "rank 1 prints 5,000 lines/s" in reading_verdict(at)[2]
    assert "lines/s" not in reading_verdict(with_(at, over=True))[2]


def test_no_rank_has_a_colour_that_is_a_verdict() -> None:
    for name in COLOURS_ON_DARK + COLOURS_ON_LIGHT:
        hue, _, strength = colorsys.rgb_to_hls(*(c / 255 for c in Color.parse(name).triplet or ()))
        assert strength < 0.35 or 0.45 < hue < 0.92, name
    assert not [name for name in COLOURS_OF_TERMINAL if name.endswith(("red", "yellow", "green"))]
