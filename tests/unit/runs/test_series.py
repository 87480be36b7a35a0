"""Curves of bounded length: where nothing was measured, and which range nearly all of one lies in.
Claims about the course of a stored run: a few of its entries tell it.
"""

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.model.names import RunId
from distconsole.runs.series import MAX_GAPS, Band, Series, usual_range
from distconsole.runs.store.run_file import NEAR_ENTRIES
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import PLACES, sketch_of
from distconsole.tui.views.runs import course_of
from fakes.journals import Journal


@pytest.mark.parametrize(
    ("of_steps", "told", "gaps"),
    [
        (False, [(float(at), 5.0) for at in (*range(10), *range(30, 40))], [(9.0, 30.0)]),
        (True, [(float(at), 30_000.0) for at in range(0, 300, 30)], []),
        (True, [*((float(at), 50.0) for at in range(10)), (30.0, 20_000.0)], [(9.0, 30.0)]),
    ],
    ids=["no values", "slow steps that are told seldom", "a pause that became one long step"],
)
def test_a_time_without_values_is_a_gap(
    of_steps: bool, told: list[tuple[float, float]], gaps: list[tuple[float, float]]
) -> None:
    band = Band(of_steps=of_steps)
    for at, value in told:
        band.put(at, value)
    if of_steps:
        band.flush()
    assert band.series.gaps == gaps


def test_gaps_stay_when_neighbours_are_merged_and_are_bounded() -> None:
    series = Series(limit=8)
    for x in range(1000):
        if x % 4 == 0:
            series.interrupt(float(x))
        series.put(float(x), 1.0)
    series.interrupt(5000.0)
    series.put(5000.0, 1.0)
    assert len(series.gaps) <= MAX_GAPS
    assert series.gaps[-1] == (series.gaps[-1][0], 5000.0)
    assert series.gaps[-1][0] >= 990.0
    assert series.xs[-1] == 5000.0


def test_what_begins_again_has_no_gap_from_before() -> None:
    series = Series()
    series.put(1.0, 1.0)
    series.interrupt(30.0)
    series.put(30.0, 1.0)
    series.cut(10.0)
    assert series.gaps == []


def test_one_long_window_does_not_make_all_others_alike() -> None:
    values = [20.0 + place % 3 for place in range(100)]
    values[50] = values[51] = 9000.0
    low, high = usual_range(values, values)
    assert low == 20.0
    assert 22.0 <= high < 30.0


@pytest.mark.parametrize(
    ("values", "usual"),
    [
        ([20.0] * 400 + [60.0] * 3, (20.0, 60.0)),
        ([20.0] * 5 + [9000.0], (20.0, 9000.0)),
        ([float(place) for place in range(100)], (0.0, 99.0)),
    ],
    ids=["what goes on is no outlier", "of few none is one", "values near each other"],
)
def test_usual_values_are_all_shown(values: list[float], usual: tuple[float, float]) -> None:
    assert usual_range(values, values) == usual


@pytest.mark.usefixtures("home")
def test_the_course_of_a_run_is_read_from_a_few_places_of_one_host() -> None:
    journal = Journal(seconds=2000)
    journal.write(RunStore(runs_dir()))
    with RunStore(runs_dir()).open(RunId(journal.run)) as run_file:
        sketch = sketch_of(run_file)
        read = list(run_file.spread_windows("node1", 10))
        assert list(run_file.spread_windows("nobody", 10)) == []
    assert (sketch.name, sketch.rank) == ("loss", 0)
    assert sketch.xs == tuple(sorted(set(sketch.xs)))
    assert sketch.xs[0] < 20
    assert sketch.xs[-1] > 1980
    assert PLACES <= len(sketch.xs) < PLACES * NEAR_ENTRIES
    assert sketch.values[0] > sketch.values[-1]
    assert len(read) <= 10 * NEAR_ENTRIES
    assert all(msgspec.json.decode(each.body)["kind"] == "window" for each in read)


@pytest.mark.usefixtures("home")
def test_the_last_value_of_a_course_names_its_rank_as_other_figures_are_means() -> None:
    Journal(run="mine-1121-a3f9", seconds=60).write(RunStore(runs_dir()))
    plot = course_of("mine-1121-a3f9")
    assert plot.said[0][0].startswith("rank 0, last 0.")


@pytest.mark.usefixtures("home")
def test_a_run_that_gave_no_loss_is_shown_by_its_rate_and_one_without_steps_by_nothing() -> None:
    store = RunStore(runs_dir())
    Journal(run="rate-1121-a3f9", words="x").write(store)
    Journal(run="none-1121-a3f9", seconds=0).write(store)
    with store.open(RunId("rate-1121-a3f9")) as run_file:
        sketch = sketch_of(run_file)
    assert (sketch.name, set(sketch.values)) == ("samples/s", {640.0})
    with store.open(RunId("none-1121-a3f9")) as run_file:
        assert sketch_of(run_file) is None
