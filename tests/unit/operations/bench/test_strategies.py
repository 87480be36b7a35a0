"""What ``bench strategies`` runs, what it leaves out and why: rules alone, no host.
The figures of ``bench strategies``: from events to one run, from runs to a strategy.
"""

import pytest
from msgspec import UNSET, UnsetType

from distconsole.launch.plan import NodeFacts
from distconsole.model.events import BenchRun, Event, Spread
from distconsole.model.names import HostName
from distconsole.model.requests import Bench, PrecisionName, StrategyName, Where
from distconsole.model.run_events import EndState, GpuSample, Metric, RunEnded, Window
from distconsole.model.run_summary import FirstFailure
from distconsole.operations.bench.comparison import (
    STRATEGIES,
    BenchStrategy,
    RunFigures,
    choose_strategies,
    count_devices,
    fill_sizes,
    find_obstacle,
    spread,
    strategy_result,
    strategy_run,
)
from fakes.blank import blank


def strategy(name: str) -> BenchStrategy:
    return next(each for each in STRATEGIES if each.name == name)


def facts(*gpus: int) -> dict[HostName, NodeFacts]:
    return {
        HostName(f"h{index}"): NodeFacts(python="python3", gpus=count)
        for index, count in enumerate(gpus, 1)
    }


def options(arguments: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(arguments[::2], arguments[1::2], strict=True))


def test_every_name_has_its_strategy_in_the_same_order() -> None:
    assert [each.name for each in STRATEGIES] == list(StrategyName)


@pytest.mark.parametrize(
    ("name", "ranks", "gpus", "reason"),
    [
        ("single", 1, (0,), ""),
        ("dp", 4, (0, 0), "h1 has no GPU"),
        ("dp", 2, (1, 1), "h1 has one GPU"),
        ("dp", 2, (2,), ""),
        ("ddp", 1, (1,), "there is one rank"),
        ("horovod", 1, (0,), "there is one rank"),
        ("ddp", 2, (0, 0), ""),
        ("ddp+bf16", 3, (2, 0), "no GPU on h2"),
        ("ddp+bf16", 2, (2,), ""),
        ("horovod+mpi", 2, (0, 0), ""),
    ],
)
def test_what_cannot_run_says_why(
    name: str, ranks: int, gpus: tuple[int, ...], reason: str
) -> None:
    found = find_obstacle(strategy(name), ranks, facts(*gpus))
    assert bool(found) == bool(reason)
    assert reason in found


def test_only_and_skip_choose() -> None:
    only = (StrategyName.DDP, StrategyName.SINGLE)
    request = Bench(only=only, skip=(StrategyName.DDP,))
    assert [each.name for each in choose_strategies(request)] == ["single"]
    assert len(choose_strategies(Bench())) == len(STRATEGIES)


def test_sizes_follow_from_the_hosts_unless_given() -> None:
    small = fill_sizes(Bench(), list(facts(8, 0).values()))
    large = fill_sizes(Bench(), list(facts(8, 8).values()))
    given = fill_sizes(Bench(images=7, batch=3, width=2), list(facts(8).values()))
    assert (small.images, small.batch, small.width) == (512, 32, 16)
    assert (large.images, large.batch, large.width) == (50_000, 128, 64)
    assert (given.images, given.batch, given.width) == (7, 3, 2)


def test_a_device_of_any_strategy_has_the_same_batch_and_threads() -> None:
    request = Bench(where=Where(hosts="h1,h2"), nproc="4", batch=8)
    nodes = facts(4, 4)
    first = nodes[HostName("h1")]
    sizes = fill_sizes(request, list(nodes.values()))
    seen = {}
    for name in ("single", "dp", "ddp"):
        devices = count_devices(strategy(name), 8, first)
        run = strategy_run(strategy(name), sizes, devices, "3")
        seen[name] = (
            devices,
            options(run.arguments)["--batch"],
            dict(run.env).get("OMP_NUM_THREADS"),
            run.nproc,
        )
    assert seen == {
        "single": (1, "8", "3", None),
        "dp": (4, "32", "12", None),
        "ddp": (8, "8", None, "4"),
    }


def test_a_strategy_is_one_ordinary_run() -> None:
    request = Bench(where=Where(hosts="a"), precision=PrecisionName.BF16, epochs=2)
    sizes = fill_sizes(request, list(facts(0).values()))
    run = strategy_run(strategy("horovod+mpi"), sizes, 2)
    assert (run.module, run.script) == (True, "distconsole_training.recipes.cifar10")
    assert (run.where, run.name, run.workdir) == (Where(hosts="a"), "bench-horovod+mpi", "/")
    assert run.env == (("HOROVOD_CONTROLLER", "mpi"),)
    given = options(run.arguments)
    assert (given["--strategy"], given["--precision"], given["--epochs"]) == (
        "horovod",
        "bf16",
        "2",
    )
    fp16 = strategy_run(strategy("ddp+fp16"), sizes, 2)
    assert options(fp16.arguments)["--compression"] == "fp16"


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
