"""Whatever a node may say within the contract: no picture, line, page or table of a run breaks by it."""

import json
import random

import pytest

from distconsole.rpc import wire
from distconsole.runs.points import Point, reduce_points
from distconsole.runs.reduce import RunReducer
from fakes.any_entry import any_entries
from fuzz.whole_run import HOSTS, Everything

ENTRIES = 120


@pytest.mark.parametrize("seed", [10, 58, 138, 1280])
def test_nothing_that_the_wire_lets_through_breaks_what_is_made_of_a_run(seed: int) -> None:
    reducer, made = RunReducer("r", HOSTS), Everything()
    for host, entry in any_entries(random.Random(seed), ENTRIES):
        said = json.loads(json.dumps({"entries": [entry]}))
        known = wire.check_item("follow", said).entries[0]
        for event in reducer.feed(host, known, known.t):
            made.take(event)
        made.look(known.t)
    for event in reducer.lost_for_good(1e9):
        made.take(event)
    made.end(1e9)
    for out in made.printed:
        assert "\x1b]" not in out.getvalue()
        assert "\u202e" not in out.getvalue()


@pytest.mark.parametrize("weight", [-1.0, float("inf"), float("nan")])
def test_samples_that_weigh_nothing_are_no_weight(weight: float) -> None:
    reduced = reduce_points([Point(1, 0.5, 1.0), Point(1, 0.7, weight)])
    assert reduced == (pytest.approx(0.6), None)
