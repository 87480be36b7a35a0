"""The strategies that ``bench strategies`` compares, and what each is run as. Pure: it runs none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distconsole.launch.addresses import NodeFacts
from distconsole.model.names import HostName
from distconsole.model.requests import (
    Bench,
    LauncherName,
    PrecisionName,
    Run,
    StrategyName,
)

RECIPE = "distconsole_training.recipes.cifar10"

THREADS = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to train.

    Attributes:
        word: The recipe's ``--strategy``.
        alone: One process on the first host; else a rank a slot on all.
        compression: The recipe's ``--compression``.
        env: Added to every rank's environment.
    """

    name: StrategyName
    word: str
    launcher: LauncherName
    alone: bool = False
    compression: str = "none"
    env: tuple[tuple[str, str], ...] = ()


_HOROVOD = LauncherName.HOROVOD

STRATEGIES = (
    Strategy(StrategyName.SINGLE, "single", LauncherName.SINGLE, alone=True),
    Strategy(StrategyName.DP, "dp", LauncherName.SINGLE, alone=True),
    Strategy(StrategyName.DDP, "ddp", LauncherName.TORCH),
    Strategy(StrategyName.DDP_FP16, "ddp", LauncherName.TORCH, compression="fp16"),
    Strategy(StrategyName.DDP_BF16, "ddp", LauncherName.TORCH, compression="bf16"),
    Strategy(StrategyName.HOROVOD, "horovod", _HOROVOD),
    Strategy(StrategyName.HOROVOD_FP16, "horovod", _HOROVOD, compression="fp16"),
    Strategy(StrategyName.HOROVOD_MPI, "horovod", _HOROVOD, env=(("HOROVOD_CONTROLLER", "mpi"),)),
)
"""In the order of the table; the first is what the others are compared with."""

PLAIN = STRATEGIES[2]
"""What says how many ranks there are."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much there is to do.

    Attributes:
        images: Of an epoch, over all ranks.
        batch: That a device reads at once.
        width: Channels of the first stage.
    """

    images: int
    batch: int
    epochs: int
    width: int
    precision: PrecisionName


def sizes_for(request: Bench, facts: Sequence[NodeFacts]) -> Sizes:
    """Return the sizes asked for; else those of CIFAR-10 where every host has a GPU, small ones elsewhere."""
    on_gpus = all(each.gpus for each in facts)
    images, batch, width = (50_000, 128, 64) if on_gpus else (512, 32, 16)
    return Sizes(
        images=request.images or images,
        batch=request.batch or batch,
        epochs=request.epochs,
        width=request.width or width,
        precision=request.precision,
    )


def wanted(request: Bench) -> tuple[Strategy, ...]:
    """Return the strategies that ``--only`` and ``--skip`` leave."""
    return tuple(
        each
        for each in STRATEGIES
        if (not request.only or each.name in request.only) and each.name not in request.skip
    )


def obstacle(strategy: Strategy, ranks: int, facts: Mapping[HostName, NodeFacts]) -> str:
    """Return why a strategy would be another one here, or could not run; nothing if it can.

    Args:
        strategy: Which.
        ranks: That all hosts have together.
        facts: By host, in the order of ranks.
    """
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


def devices_of(strategy: Strategy, ranks: int, first: NodeFacts) -> int:
    """Return how many devices a strategy trains on; a rank's share of the CPUs counts as one."""
    if strategy.name is StrategyName.DP:
        return first.gpus
    return 1 if strategy.alone else ranks


def run_for(
    strategy: Strategy, request: Bench, sizes: Sizes, devices: int, threads: str | None = None
) -> Run:
    """Return the ordinary run that measures a strategy.

    Args:
        strategy: Which.
        request: With hosts and ranks.
        sizes: How much there is to do.
        devices: What it trains on.
        threads: That a rank has in the runs with several; a process alone gets as many for each of
            its devices, so that a speed-up is one over a device.
    """
    alone = strategy.alone
    env = strategy.env
    if alone and threads is not None:
        env = (*env, (THREADS, str(int(threads) * devices)))
    options = {
        "strategy": strategy.word,
        "compression": strategy.compression,
        "precision": sizes.precision.value,
        "data": "generated",
        "limit": sizes.images,
        "batch": sizes.batch * (devices if alone else 1),
        "epochs": sizes.epochs,
        "width": sizes.width,
    }
    return Run(
        script=RECIPE,
        module=True,
        arguments=tuple(
            word for name, value in options.items() for word in (f"--{name}", str(value))
        ),
        where=request.where,
        launcher=strategy.launcher,
        nproc=None if alone else request.nproc,
        env=env,
        # Of the caller's own folder the nodes may know nothing, and its modules would be found first.
        workdir="/",
        name=f"bench-{strategy.name}",
        json=True,
    )
