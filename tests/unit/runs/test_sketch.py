"""Claims about the course of a stored run: a few of its entries tell it."""

from __future__ import annotations

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.model.names import RunId
from distconsole.runs.sketch import PLACES, sketch_of
from distconsole.runs.store.run_file import NEAR_ENTRIES
from distconsole.runs.store.store import RunStore
from distconsole.tui.views.runs import course_of
from fakes.journals import Journal


@pytest.mark.usefixtures("home")
def test_the_course_of_a_run_is_read_from_a_few_places_of_one_host() -> None:
    journal = Journal(seconds=2000)
    journal.write(RunStore(runs_dir()))
    with RunStore(runs_dir()).open(RunId(journal.run)) as run_file:
        sketch = sketch_of(run_file)
        read = list(run_file.spread_windows("node1", 10))
        assert list(run_file.spread_windows("nobody", 10)) == []
    assert sketch is not None
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
    assert plot is not None
    assert plot.said[0][0].startswith("rank 0, last 0.")


@pytest.mark.usefixtures("home")
def test_a_run_that_gave_no_loss_is_shown_by_its_rate_and_one_without_steps_by_nothing() -> None:
    store = RunStore(runs_dir())
    Journal(run="rate-1121-a3f9", words="x").write(store)
    Journal(run="none-1121-a3f9", seconds=0).write(store)
    with store.open(RunId("rate-1121-a3f9")) as run_file:
        sketch = sketch_of(run_file)
    assert sketch is not None
    assert (sketch.name, set(sketch.values)) == ("samples/s", {640.0})
    with store.open(RunId("none-1121-a3f9")) as run_file:
        assert sketch_of(run_file) is None
