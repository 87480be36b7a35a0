"""Requests that measure: ways to train, and operations between ranks. They do nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from distconsole.model.requests.launches import LauncherName
from distconsole.model.requests.where import Where


class StrategyName(StrEnum):
    """The ways to train that ``bench strategies`` compares."""

    SINGLE = "single"
    DP = "dp"
    DDP = "ddp"
    DDP_FP16 = "ddp+fp16"
    DDP_BF16 = "ddp+bf16"
    HOROVOD = "horovod"
    HOROVOD_FP16 = "horovod+fp16"
    HOROVOD_MPI = "horovod+mpi"


class PrecisionName(StrEnum):
    """What the model of ``bench strategies`` computes in."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


@dataclass(frozen=True, slots=True)
class Bench:
    """Measure strategies over the hosts; sizes that are None follow from the hosts."""

    what: str
    where: Where = Where()
    only: tuple[StrategyName, ...] = ()
    skip: tuple[StrategyName, ...] = ()
    rounds: int = 3
    images: int | None = None
    batch: int | None = None
    epochs: int = 3
    width: int | None = None
    precision: PrecisionName = PrecisionName.FP32
    nproc: str | None = None
    json: bool = False


class CollectiveName(StrEnum):
    """Operations that ``bench collectives`` measures."""

    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    SEND_RECV = "send_recv"
    BARRIER = "barrier"


@dataclass(frozen=True, slots=True)
class BenchCollectives:
    """Measure collectives over the hosts; nothing in ``ops`` or ``sizes`` stands for the usual ones.

    Attributes:
        launcher: ``torch``, ``horovod`` or ``mpi``.
        sizes: In bytes.
    """

    where: Where = Where()
    launcher: LauncherName = LauncherName.TORCH
    ops: tuple[CollectiveName, ...] = ()
    sizes: tuple[int, ...] = ()
    nproc: str | None = None
    budget_seconds: float | None = None
    json: bool = False
