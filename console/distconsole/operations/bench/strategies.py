"""The strategies that ``bench strategies`` compares, and the run of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from distconsole.launch.plan import NodeFacts
from distconsole.model.names import HostName
from distconsole.model.requests import Bench, LauncherName, Run, StrategyName

RECIPE = "distconsole_training.recipes.cifar10"

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class BenchStrategy:
    """A way to train: the recipe's ``--strategy`` (``word``); ``alone``: one process on the first host."""

    name: StrategyName
    word: str
    launcher: LauncherName
    alone: bool = False
    compression: str = "none"
    env: tuple[tuple[str, str], ...] = ()


_HOROVOD = LauncherName.HOROVOD

STRATEGIES = (
    BenchStrategy(StrategyName.SINGLE, "single", LauncherName.SINGLE, alone=True),
    BenchStrategy(StrategyName.DP, "dp", LauncherName.SINGLE, alone=True),
    BenchStrategy(StrategyName.DDP, "ddp", LauncherName.TORCH),
    BenchStrategy(StrategyName.DDP_FP16, "ddp", LauncherName.TORCH, compression="fp16"),
    BenchStrategy(StrategyName.DDP_BF16, "ddp", LauncherName.TORCH, compression="bf16"),
    BenchStrategy(StrategyName.HOROVOD, "horovod", _HOROVOD),
    BenchStrategy(StrategyName.HOROVOD_FP16, "horovod", _HOROVOD, compression="fp16"),
    BenchStrategy(
        StrategyName.HOROVOD_MPI, "horovod", _HOROVOD, env=(("HOROVOD_CONTROLLER", "mpi"),)
    ),
)
"""In the order of the table; the first is the reference."""

PLAIN = STRATEGIES[2]
"""What says how many ranks there are."""


def fill_sizes(request: Bench, facts: Sequence[NodeFacts]) -> Bench:
    """Return the request with all sizes: those of CIFAR-10 where every host has a GPU, else small ones.

    ``images`` are those of an epoch over all ranks, ``batch`` is what a device reads at once, and
    ``width`` the channels of the first stage.
    """
    on_gpus = all(each.gpus for each in facts)
    images, batch, width = (50_000, 128, 64) if on_gpus else (512, 32, 16)
    return replace(
        request,
        images=request.images or images,
        batch=request.batch or batch,
        width=request.width or width,
    )


def choose_strategies(request: Bench) -> tuple[BenchStrategy, ...]:
    """Return the strategies that ``--only`` and ``--skip`` leave."""
    return tuple(
        each
        for each in STRATEGIES
        if (not request.only or each.name in request.only) and each.name not in request.skip
    )


def find_obstacle(strategy: BenchStrategy, ranks: int, facts: Mapping[HostName, NodeFacts]) -> str:
    """Return why a strategy would be another one on these ranks and hosts, or could not run; else nothing."""
    host, first = next(iter(facts.items()))
    if strategy.name is StrategyName.DP and first.gpus < 2:
        gpus = "one GPU" if first.gpus else "no GPU"
        return f"{host} has {gpus}, and DataParallel needs several: it would be single"
    if not strategy.alone and ranks < 2:
        return "there is one rank, so it would be single (more hosts, or --nproc)"
    without = [name for name, each in facts.items() if not each.gpus]
    if strategy.compression == "bf16" and without:
        return f"gradients in bf16 need GPUs and NCCL; no GPU on {', '.join(without)}"
    return ""


def count_devices(strategy: BenchStrategy, ranks: int, first: NodeFacts) -> int:
    """Return how many devices a strategy trains on; a rank's share of the CPUs counts as one."""
    if strategy.name is StrategyName.DP:
        return first.gpus
    return 1 if strategy.alone else ranks


def strategy_run(
    strategy: BenchStrategy, request: Bench, devices: int, threads: str | None = None
) -> Run:
    """Return the ordinary run that measures a strategy; ``request`` has all sizes (``fill_sizes``).

    ``threads`` are those of a rank in the runs with several; a process alone gets as many for each of its
    ``devices``, so that a speed-up is one over a device.
    """
    alone, env = strategy.alone, strategy.env
    if alone and threads is not None:
        env = (*env, (THREADS, str(int(threads) * devices)))
    options = {
        "strategy": strategy.word,
        "compression": strategy.compression,
        "precision": request.precision.value,
        "data": "generated",
        "limit": request.images,
        "batch": (request.batch or 1) * (devices if alone else 1),
        "epochs": request.epochs,
        "width": request.width,
    }
    words = (word for name, value in options.items() for word in (f"--{name}", str(value)))
    return Run(
        script=RECIPE,
        module=True,
        arguments=tuple(words),
        where=request.where,
        launcher=strategy.launcher,
        nproc=None if alone else request.nproc,
        env=env,
        # Of the caller's own folder the nodes may know nothing, and its modules would be found first.
        workdir="/",
        name=f"bench-{strategy.name}",
        json=True,
    )
