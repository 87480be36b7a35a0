"""The user's expectations of a host, from ``[expect]`` of the configuration. They are compared elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from distconsole.model.options import REQUIRED, Kind, plain
from distconsole.model.requests import CollectiveName

NO_PACKAGES: Mapping[str, str] = MappingProxyType({})


def said_in(settings: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are set: neither None nor an empty tuple."""
    said = {each.name: getattr(settings, each.name) for each in fields(settings)}
    return {name: value for name, value in said.items() if value not in (None, ())}


@dataclass(frozen=True, slots=True)
class CollectiveExpectation:
    """Limits for a timed collective.

    Attributes:
        op: Such as ``all_reduce``.
        bytes: The size as nccl-tests counts it; None means the largest that was timed.
        launcher: ``torch``, ``horovod`` or ``mpi``; empty means every one.
        busbw_gbs: At least, in GB/s.
        time_us: At most, in microseconds.
    """

    op: str = plain(REQUIRED, kind=CollectiveName)
    bytes: int | None = plain(None, kind=Kind.SIZE)
    launcher: str = plain("", kind=("torch", "horovod", "mpi"))
    busbw_gbs: float | None = plain(None, kind=Kind.NUMBER)
    time_us: float | None = plain(None, kind=Kind.NUMBER)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expectations of a host; None without one.

    Versions are specifiers as pip knows them; sizes are in bytes, and infinity is no limit.

    Attributes:
        gpu_model: A part of the name that the driver gives; large and small letters are the same.
        gpu_memory: Of each GPU, at least; the other sizes likewise.
        disk_free: In every folder that is checked.
        pair_gbit_s: From and to every other host, at least.
        rtt_us: To every other host, at most.
    """

    python: str | None = plain(None, kind=Kind.VERSION)
    torch: str | None = plain(None, kind=Kind.VERSION)
    cuda: str | None = plain(None, kind=Kind.VERSION)
    nccl: str | None = plain(None, kind=Kind.VERSION)
    horovod: str | None = plain(None, kind=Kind.VERSION)
    mpi: str | None = plain(None, kind=Kind.VERSION)
    driver: str | None = plain(None, kind=Kind.VERSION)
    packages: Mapping[str, str] = field(default_factory=lambda: NO_PACKAGES)
    gpus: int | None = plain(None, kind=Kind.COUNT)
    gpu_model: str | None = plain(None, kind=Kind.TEXT)
    gpu_memory: float | None = plain(None, kind=Kind.SIZE)
    cpus: int | None = plain(None, kind=Kind.POSITIVE)
    memory: float | None = plain(None, kind=Kind.SIZE)
    shm: float | None = plain(None, kind=Kind.SIZE)
    disk_free: float | None = plain(None, kind=Kind.SIZE)
    nofile: float | None = plain(None, kind=Kind.LIMIT)
    memlock: float | None = plain(None, kind=Kind.LIMIT)
    pair_gbit_s: float | None = plain(None, kind=Kind.NUMBER)
    rtt_us: float | None = plain(None, kind=Kind.NUMBER)
    collectives: tuple[CollectiveExpectation, ...] = ()

    def over(self, other: Expectation) -> Expectation:
        packages = {**other.packages, **self.packages}
        return replace(other, **{**said_in(self), "packages": packages})


NOTHING_EXPECTED = Expectation()
