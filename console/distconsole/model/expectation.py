"""What the user expects of a host, from ``[expect]`` of the configuration. It is compared elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

NO_PACKAGES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class CollectiveExpectation:
    """What a timed collective has to reach.

    Attributes:
        op: Such as ``all_reduce``.
        bytes: The size as nccl-tests counts it; None means the largest that was timed.
        launcher: ``torch``, ``horovod`` or ``mpi``; empty means every one.
        busbw_gbs: At least, in GB/s.
        time_us: At most, in microseconds.
    """

    op: str
    bytes: int | None = None
    launcher: str = ""
    busbw_gbs: float | None = None
    time_us: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is expected of a host; None where nothing is.

    Versions are specifiers as pip knows them; sizes are in bytes, and infinity is no limit.

    Attributes:
        gpu_model: A part of the name that the driver gives; large and small letters are the same.
        gpu_memory: Of each GPU, at least; the other sizes likewise.
        disk_free: In every folder that is looked at.
        pair_gbit_s: From and to every other host, at least.
        rtt_us: To every other host, at most.
    """

    python: str | None = None
    torch: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    horovod: str | None = None
    mpi: str | None = None
    driver: str | None = None
    packages: Mapping[str, str] = field(default_factory=lambda: NO_PACKAGES)
    gpus: int | None = None
    gpu_model: str | None = None
    gpu_memory: float | None = None
    cpus: int | None = None
    memory: float | None = None
    shm: float | None = None
    disk_free: float | None = None
    nofile: float | None = None
    memlock: float | None = None
    pair_gbit_s: float | None = None
    rtt_us: float | None = None
    collectives: tuple[CollectiveExpectation, ...] = ()

    def over(self, other: Expectation) -> Expectation:
        """Return this, with what ``other`` says where this says nothing."""
        said: dict[str, Any] = {
            each.name: getattr(self, each.name)
            for each in fields(self)
            if getattr(self, each.name) not in (None, ())
        }
        said["packages"] = {**other.packages, **self.packages}
        return replace(other, **said)


NOTHING_EXPECTED = Expectation()
