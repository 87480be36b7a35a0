"""Moments of a run as people write them, and how one moves through them."""

import math

import pytest

from distconsole.runs.replay.clock import Axis, ReplayClock, parse_time

DAY = 86400.0
START = 1_763_700_000.0
"""2025-11-21 04:40:00 UTC."""


class Clock:
    t = 50.0

    def __call__(self) -> float:
        return self.t


@pytest.fixture
def clock() -> Clock:
    return Clock()


def replay_clock(clock: Clock, seconds: float = 600.0) -> ReplayClock:
    return ReplayClock(Axis(START, START + seconds), clock)


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("start", 0),
        ("90s", 90),
        ("1h30m", 5400),
        ("+30s", 130),
        ("-30", 70),
        ("40%", 0.4 * 2 * DAY),
        ("step 1200", 77),
        ("04:41:10", 70),
        ("04:40", 0),
        ("03:00", DAY - 6000),
    ],
)
def test_a_moment_is_what_people_write(text: str, after: float) -> None:
    axis = Axis(START, START + 2 * DAY)
    found = parse_time(text, axis, START + 100, {1200: START + 77}.get)
    assert found == pytest.approx(START + after)


def test_the_end_is_wherever_it_comes_to_be(clock: Clock) -> None:
    head = replay_clock(clock)
    head.seek(parse_time("end", head.axis, head.t, lambda _: None))
    head.axis.end += 1000
    assert head.t == START + 1600
    assert head.at_end


@pytest.mark.parametrize("text", ["", "noon", "25:00", "step", "step 9", "nan", "inf"])
def test_what_is_no_moment_is_said(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no time of the run|no rank has done"):
        parse_time(text, Axis(START, START + 10), START, lambda _: None)


def test_playing_moves_and_stops_at_the_end(clock: Clock) -> None:
    head = replay_clock(clock)
    head.play()
    assert head.t == START, "from the end there is only the beginning to go on from"
    clock.t += 7
    assert head.t == START + 35
    assert not head.stop_at_end()
    clock.t += 113
    assert head.stop_at_end()
    assert (head.at_end, head.playing) == (True, False)


def test_a_pause_stands_still(clock: Clock) -> None:
    head = replay_clock(clock)
    head.seek(START + 100)
    head.play()
    clock.t += 5
    head.pause()
    clock.t += 50
    assert head.t == START + 125
    assert head.jumps == 1


@pytest.mark.parametrize(("seconds", "speed"), [(30, 1), (600, 5), (3601, 31)])
def test_a_run_is_played_in_two_minutes_at_most(clock: Clock, seconds: float, speed: int) -> None:
    assert replay_clock(clock, seconds).speed == speed


def test_no_place_is_off_the_axis(clock: Clock) -> None:
    head = replay_clock(clock)
    for t in (-math.inf, 0.0, START - 1, START + 601, math.inf):
        head.seek(t)
        assert START <= head.t <= START + 600
