"""What nodes say of GPUs while something was copied to them, as types."""

from __future__ import annotations

from distconsole.checks.facts.node import Facts, Who


class NvLink(Facts, frozen=True, kw_only=True):
    """A link before copies to another GPU and after; errors are what its counters grew by."""

    link: int
    up_before: bool = True
    up: bool = True
    replays: int | None = None
    recoveries: int | None = None
    flit_errors: int | None = None
    data_errors: int | None = None


class LoadedGpu(Facts, frozen=True, kw_only=True):
    """A GPU that was loaded, or why it was not.

    Attributes:
        skipped: Why nothing was copied to it; ``process`` is who uses it.
        error: What CUDA said instead.
        width: The most lanes at once while copies went on; ``width_max`` is what card and slot can.
        generation: Likewise, PCIe's.
        to_device: Bytes a second, and so are ``from_device`` and ``to_peer``.
        counted: What the GPU itself counted to it, bytes a second.
        clock_reasons: Bits of nvmlClocksEventReason that were set most of the time.
        replays: How often PCIe had to send again.
        peer: The GPU that it copied to over NVLink.
        peer_error: What CUDA said to that instead.
    """

    index: int
    uuid: str | None = None
    skipped: str = ""
    process: Who | None = None
    error: str = ""
    width: int | None = None
    width_max: int | None = None
    generation: int | None = None
    generation_max: int | None = None
    to_device: int | None = None
    from_device: int | None = None
    counted: int | None = None
    clock_reasons: int = 0
    replays: int | None = None
    peer: int | None = None
    to_peer: int | None = None
    peer_error: str = ""
    links: tuple[NvLink, ...] = ()

    @property
    def measured(self) -> bool:
        """Whether copies to it went on."""
        return self.to_device is not None


class GpuLoadFacts(Facts, frozen=True, kw_only=True):
    """Group ``gpu_load``."""

    gpus: tuple[LoadedGpu, ...] = ()
