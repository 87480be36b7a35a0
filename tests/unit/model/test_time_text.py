"""Times as people read them, and whatever a node may say instead of one."""

import math

import pytest

from distconsole.model.time_text import (
    age_text,
    clock_text,
    date_text,
    duration_text,
    span_text,
    time_of_day,
    unusual_text,
    utc_text,
)

NOON = 1_763_726_400.0
"""2025-11-21 12:00:00 UTC."""
ABSURD = (1e300, -1e300, math.nan, math.inf, -math.inf, float(2**63), -1e15)


@pytest.mark.usefixtures("utc")
def test_a_moment_reads_as_a_clock_and_a_date() -> None:
    assert clock_text(NOON + 3723) == "13:02:03"
    assert clock_text(NOON + 0.75, tenths=True) == "12:00:00.7"
    assert date_text(NOON) == "2025-11-21 12:00"
    assert date_text(NOON, "%m-%d") == "11-21"
    assert utc_text(NOON) == "2025-11-21 12:00:00 UTC"


@pytest.mark.parametrize("t", ABSURD)
def test_what_cannot_be_a_time_is_unknown(t: float) -> None:
    assert clock_text(t) == "??:??:??"
    assert clock_text(t, tenths=True) == "??:??:??.?"
    assert (date_text(t), utc_text(t)) == ("?", "?")
    assert (duration_text(t), span_text(t), age_text(t)) == ("?", "?", "?")
    assert time_of_day("14:05", t) is None


@pytest.mark.parametrize("t", [-9.9e11, 0.0, 9.9e11])
def test_what_a_clock_may_be_set_to_is_shown(t: float) -> None:
    for shown in (clock_text(t), date_text(t), utc_text(t), duration_text(t), span_text(t)):
        assert "?" not in shown
    time_of_day("14:05", t)


@pytest.mark.parametrize(
    ("seconds", "duration", "span", "age"),
    [
        (-3, "-3.0 s", "-3 s", "-3 s"),
        (42, "42.0 s", "42 s", "42 s"),
        (61, "1 min 1 s", "61 s", "61 s"),
        (119, "1 min 59 s", "2 min", "119 s"),
        (720, "12 min 0 s", "12 min", "12 min"),
        (3720, "1 h 2 min", "62 min", "62 min"),
        (7200, "2 h 0 min", "2 h", "2 h"),
        (12_000, "3 h 20 min", "3 h 20 min", "3 h"),
        (100_000, "27 h 46 min", "28 h", "28 h"),
        (432_000, "120 h 0 min", "5.0 days", "5 days"),
    ],
)
def test_spans_are_said_as_each_place_needs_them(
    seconds: float, duration: str, span: str, age: str
) -> None:
    assert duration_text(seconds) == duration
    assert span_text(seconds) == span
    assert age_text(seconds) == age


def test_an_unknown_duration_is_nothing() -> None:
    assert duration_text(None) == ""


def test_a_figure_and_what_is_usual_have_each_their_unit() -> None:
    assert unusual_text(14.0, "a step", 10.0) == "14 ms a step where 10 ms is usual"
    assert unusual_text(4710.0, "a step", 37.9) == "4.71 s a step where 37.9 ms is usual"
