"""What nodes say of GPUs and of RDMA adapters."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from distconsole.checks.facts.node import Facts, Who

AMD = "AMD"
"""A vendor; the other one is NVIDIA."""


class Gpu(Facts, frozen=True, kw_only=True):
    """One GPU as NVML tells it; None where the driver has no answer.

    ``_next`` is the mode after the next reset; ``instances`` is the memory of each MIG instance.
    """

    index: int
    uuid: str | None = None
    name: str | None = None
    mem_total: int | None = None
    mem_used: int | None = None
    capability: tuple[int, int] | None = None
    ecc: int | None = None
    ecc_next: int | None = None
    mig: int | None = None
    mig_next: int | None = None
    instances: tuple[int, ...] = ()
    compute_mode: int | None = None
    processes: tuple[Who, ...] = ()


class GpuHealth(Facts, frozen=True, kw_only=True):
    """How a GPU is; ``clock_reasons`` are nvml.h's nvmlClocksEventReason bits.

    ``uncorrected`` counts since the last reset, ``sram_uncorrected`` since the GPU was made.
    """

    index: int
    clock_reasons: int | None = None
    temperature_c: int | None = None
    uncorrected: int | None = None
    sram_uncorrected: int | None = None
    power_limit_mw: int | None = None
    power_default_mw: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_generation_max: int | None = None
    links_up: int = 0
    fabric_state: int | None = None
    fabric_status: int | None = None


class BrokenGpu(Facts, frozen=True, kw_only=True):
    """A GPU that NVML counts and cannot open."""

    index: int
    error: str = ""


class Kfd(Facts, frozen=True, kw_only=True):
    """AMD's compute device: which files the user may not open; ``owner`` is the group that may."""

    shut: tuple[str, ...] = ()
    owner: str = ""


class GpuFacts(Facts, frozen=True, kw_only=True):
    """``cuda_driver`` is 1000 x major + 10 x minor, as NVML gives it; ``kfd`` is there with a GPU of AMD's."""

    group: ClassVar[str] = "gpu"
    present: bool
    error: str = ""
    driver: str | None = None
    kernel_module: str = ""
    cuda_driver: int | None = None
    vendor: str = "NVIDIA"
    kfd: Kfd | None = None
    rocm: str = ""
    count: int = 0
    gpus: tuple[Gpu, ...] = ()
    broken: tuple[BrokenGpu, ...] = ()
    health: tuple[GpuHealth, ...] = ()
    devices: int = 0

    @property
    def models(self) -> dict[int, str]:
        """The model of each GPU by its index; empty if the driver does not report it."""
        return {gpu.index: gpu.name or "" for gpu in self.gpus}


class RdmaPort(Facts, frozen=True, kw_only=True):
    """A port of an RDMA adapter; ``state`` is ACTIVE if it works; ``gids``: by index address and kind."""

    device: str
    port: str
    gids: dict[str, str] = msgspec.field(default_factory=dict)
    state: str = ""
    physical: str = ""
    rate_gbit: float | None = None
    counters: dict[str, int] = msgspec.field(default_factory=dict)


class FabricFacts(Facts, frozen=True, kw_only=True):
    """``fabric_manager`` is None without NVSwitch, or if it cannot be seen."""

    group: ClassVar[str] = "fabric"
    ports: tuple[RdmaPort, ...] = ()
    peer_memory: bool = False
    switches: int = 0
    fabric_manager: bool | None = None
