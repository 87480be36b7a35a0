"""What ``bench strategies`` runs, what it leaves out and why: rules alone, no host."""

from __future__ import annotations

import pytest

from distconsole.launch.plan import NodeFacts
from distconsole.model.names import HostName
from distconsole.model.requests import Bench, PrecisionName, StrategyName, Where
from distconsole.operations.bench.strategies import (
    STRATEGIES,
    BenchStrategy,
    choose_strategies,
    count_devices,
    fill_sizes,
    find_obstacle,
    strategy_run,
)


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
