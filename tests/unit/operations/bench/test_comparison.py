"""The figures of ``bench strategies``: from events to one run, from runs to a strategy."""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType

from distconsole.model.events import BenchRun, Event, Spread
from distconsole.model.run_events import EndState, GpuSample, Metric, RunEnded, Window
from distconsole.model.run_summary import FirstFailure
from distconsole.operations.bench.comparison import RunFigures, spread, strategy_result
from fakes.blank import blank

RUN = {"t": 1.0, "run": "r"}


def metric(name: str, step: int, value: float, low: float | None = None) -> Metric:
    low = value if low is None else low
    return Metric(
        **RUN, name=name, step=step, value=value, min=low, max=value, ranks=2, samples=None
    )


def gpu(util: float | None, rank: int | UnsetType = 0) -> GpuSample:
    return blank(GpuSample, **RUN, host="a", util=util, rank=rank)


def window(step: int) -> Window:
    times = dict.fromkeys(("step_ms_mean", "step_ms_p95", "data_ms", "forward_ms", "backward_ms"))
    return blank(Window, **RUN, **times, step=step, steps=1)


def end(state: EndState = EndState.SUCCEEDED, code: int = 0) -> RunEnded:
    failure = FirstFailure(rank=1, host="b", exit_code=code, error="ValueError: no")
    return RunEnded(
        **RUN,
        state=state,
        exit_code=code,
        seconds=4.0,
        first_failure=failure if state is EndState.FAILED else UNSET,
    )


def told(*events: Event) -> BenchRun:
    figures = RunFigures()
    for event in events:
        figures.take(event)
    ended = figures.result("ddp", 1, 3)
    assert ended is not None
    return ended


def test_a_run_is_told_by_its_last_figures_and_its_epochs_but_the_first() -> None:
    run = told(
        metric("images_s", 8, 10.0),
        metric("test_loss", 8, 2.0),
        metric("images_s", 16, 100.0),
        metric("images_s", 24, 120.0),
        metric("test_loss", 24, 1.5),
        metric("test_accuracy", 24, 0.30000000000000004, low=0.3),
        end(),
    )
    assert (run.samples_s, run.loss, run.accuracy) == (110.0, 1.5, 0.3)
    assert (run.state, run.seconds, run.error, run.gpu_util) == (EndState.SUCCEEDED, 4.0, "", None)


def test_a_single_epoch_counts_as_it_is() -> None:
    assert told(metric("images_s", 8, 10.0), end()).samples_s == 10.0


def test_a_gpu_counts_from_the_first_step_to_the_last_and_only_with_a_rank() -> None:
    run = told(
        gpu(0.0),
        window(1),
        gpu(80.0),
        gpu(10.0, UNSET),
        gpu(None),
        gpu(90.0),
        window(2),
        gpu(0.0),
        end(),
    )
    assert run.gpu_util == 85.0


def test_a_failed_run_says_which_rank_and_why() -> None:
    run = told(end(EndState.FAILED, 7))
    assert (run.exit_code, run.error) == (7, "rank 1 on b: ValueError: no")
    assert RunFigures().result("ddp", 1, 3) is None


def bench_run(round_: int, samples_s: float, state: EndState = EndState.SUCCEEDED) -> BenchRun:
    return BenchRun(
        **RUN,
        strategy="ddp",
        round=round_,
        rounds=3,
        state=state,
        exit_code=0,
        seconds=float(round_),
        samples_s=samples_s,
        error="" if state is EndState.SUCCEEDED else "x",
    )


def test_a_speedup_is_taken_within_a_round() -> None:
    alone = {1: 100.0, 2: 50.0, 3: 10.0}
    runs = [bench_run(1, 150.0), bench_run(2, 100.0), bench_run(3, 17.0)]
    found = strategy_result(runs, alone, strategy="ddp", launcher="torch", ranks=2, devices=2)
    assert found.speedup == Spread(median=1.7, lowest=1.5, highest=2.0)
    assert found.efficiency == Spread(median=0.85, lowest=0.75, highest=1.0)
    assert found.samples_s == Spread(median=100.0, lowest=17.0, highest=150.0)
    assert (found.rounds, found.loss, found.error) == (3, None, "")


def test_without_single_there_is_no_speedup_and_failed_runs_do_not_count() -> None:
    runs = [bench_run(1, 150.0), bench_run(2, 1.0, EndState.FAILED)]
    found = strategy_result(runs, {}, strategy="ddp", launcher="torch", ranks=2, devices=2)
    assert (found.speedup, found.efficiency, found.rounds, found.error) == (None, None, 1, "x")
    assert found.samples_s == Spread(median=150.0, lowest=150.0, highest=150.0)


@pytest.mark.parametrize("values", [[], [None]])
def test_nothing_known_is_no_figure(values: list[float | None]) -> None:
    assert spread(values) is None
