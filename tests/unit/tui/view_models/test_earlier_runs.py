"""What is said of a run against the earlier ones of its name."""

from msgspec import structs

from distconsole.model.run_summary import RunSummary
from distconsole.tui.view_models.runs import change_text, run_details, run_tiles

RUN = RunSummary(
    run="train-1",
    name="train",
    state="succeeded",
    started=1000.0,
    seconds=60.0,
    script="train.py",
    launcher="torch",
    world_size=4,
    hosts=("node1", "node2"),
    samples_s=100.0,
    metrics={"loss": 0.5},
)
RUNS = [
    RUN,
    structs.replace(RUN, run="other-1", name="other", started=1500.0, samples_s=900.0),
    structs.replace(RUN, run="train-2", started=2000.0, samples_s=80.0, metrics={"loss": 0.4}),
    structs.replace(RUN, run="train-3", started=3000.0, samples_s=100.0, metrics={"loss": 0.3}),
]


def test_a_run_is_compared_with_the_one_before_it_of_its_name() -> None:
    assert change_text(RUNS[3], RUNS) == ("+25 %", "train-2")
    assert change_text(RUNS[2], RUNS) == ("-20 %", "train-1")
    assert change_text(RUN, RUNS) == ("", ""), "a later one is not before it"
    assert "(+25 % against train-2)" in run_details(RUNS[3], RUNS, 80).plain


def test_its_figures_stand_behind_those_of_the_earlier_ones() -> None:
    rate, loss, _ = run_tiles(RUNS[3], [*reversed(RUNS)])
    assert (rate.recent, rate.more) == ([100.0, 80.0, 100.0], [("+25 %", "note")])
    assert (loss.title, loss.value, loss.recent) == ("loss", "0.3", [0.5, 0.4, 0.3])
    assert run_tiles(RUN, RUNS)[0].recent == [100.0]
