"""What nodes say about themselves, as types; whatever is not said has a default.

Each group is converted from the probe's answer by ``convert``; the checks that need an answer that
does not fit say so.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from distconsole.model.decoding import threadsafe


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all groups of facts."""


class Who(Facts, frozen=True, kw_only=True):
    """A process, without its arguments; ``pid`` is None where it is not to be seen."""

    pid: int | None = None
    uid: int = -1
    name: str = ""
    age_seconds: float | None = None


class SshFacts(Facts, frozen=True, kw_only=True):
    """How the host was reached. ``error_kind`` is empty when it was; see ``errors.NodeError``."""

    error_kind: str = ""
    error: str = ""
    hint: str = ""
    user: str = ""
    hostname: str = ""
    boot_id: str = ""
    agent_python: str = ""
    reached_at: str = ""


class ClockFacts(Facts, frozen=True, kw_only=True):
    """The node's clock less ours in seconds, and the round trip that it was taken from."""

    offset_seconds: float
    rtt_seconds: float = 0.0

    @property
    def error_seconds(self) -> float:
        """How wrong the offset may be at most (RFC 5905, section 8)."""
        return self.rtt_seconds / 2


class ResolvedAddress(Facts, frozen=True, kw_only=True):
    """One address that the host's own name resolves to."""

    address: str
    bindable: bool = True
    error: str = ""


class Resolution(Facts, frozen=True, kw_only=True):
    """What the host's own name resolves to, on the host."""

    addresses: tuple[ResolvedAddress, ...] = ()
    error: str = ""


class Mount(Facts, frozen=True, kw_only=True):
    """Where a folder comes from; ``error`` is why a network filesystem does not answer."""

    point: str
    kind: str = ""
    source: str = ""
    options: str = ""
    network: bool = False
    error: str = ""


class Filesystem(Facts, frozen=True, kw_only=True):
    """Room in a folder, in bytes."""

    total: int = 0
    free: int = 0
    files: int = 0
    files_free: int = 0
    read_only: bool = False
    noexec: bool = False
    writable: bool = True
    inode: int | None = None
    mount: Mount | None = None
    error: str = ""


class CpuClocks(Facts, frozen=True, kw_only=True):
    """By governor the number of processors that it steers, and the driver below."""

    governors: dict[str, int] = {}
    driver: str = ""


class OsFacts(Facts, frozen=True, kw_only=True):
    """Group ``os``. Limits are (soft, hard), None for unlimited."""

    hostname: str
    fqdn: str = ""
    machine_id: str | None = None
    resolution: Resolution = Resolution()
    filesystems: dict[str, Filesystem] = {}
    network_mounts: tuple[Mount, ...] = ()
    kernel: str = ""
    architecture: str = ""
    distribution: str = ""
    libc: str = ""
    uid: int = -1
    user: str = ""
    home: str = ""
    temporary: str = ""
    cpus: int = 0
    load1: float = 0.0
    limits: dict[str, tuple[int | None, int | None]] = {}
    sysctl: dict[str, str | None] = {}
    memory: dict[str, int | None] = {}
    cgroup: dict[str, str | None] = {}
    cpu_clocks: CpuClocks = CpuClocks()
    infiniband: tuple[str, ...] = ()
    utc_offset_seconds: int = 0
    ends_at_logout: bool | None = None
    containerised: bool = False

    @property
    def busy(self) -> float:
        """How many processes there are for each processor, over the last minute."""
        return self.load1 / max(1, self.cpus)


class ShellFacts(Facts, frozen=True, kw_only=True):
    """Group ``shell``: by program its path, None where the shell finds none."""

    shell: str = ""
    path: str = ""
    noninteractive: dict[str, str | None] | None = None
    login: dict[str, str | None] | None = None


class PythonFacts(Facts, frozen=True, kw_only=True):
    """Group ``python``: the interpreter of the ranks and what is installed in it."""

    version: str
    executable: str = ""
    prefix: str = ""
    packages: dict[str, str] = {}
    seconds: float = 0.0


class TorchFacts(Facts, frozen=True, kw_only=True):
    """Group ``torch``: from its ``version.py``; torch itself was not imported."""

    present: bool
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    git: str = ""
    debug: bool = False
    folder: str = ""
    nccl: str | None = None
    plugins: tuple[str, ...] = ()
    nccl_library: str | None = None
    nccl_on_path: tuple[str, ...] = ()
    error: str = ""


class HorovodFacts(Facts, frozen=True, kw_only=True):
    """Group ``horovod``: from its ``metadata.json``, and from its library where that was loaded."""

    present: bool
    version: str = ""
    folder: str = ""
    against: dict[str, str] = {}
    against_error: str = ""
    torch_library: str | None = None
    built: dict[str, bool] | None = None
    load_error: str = ""
    mapped: tuple[str, ...] = ()
    error: str = ""


class EnvFacts(Facts, frozen=True, kw_only=True):
    """Group ``env``: variables that steer the engines, as a rank would get them.

    ``files`` are the lines of NCCL's, ``parameters`` those of Open MPI's, of which the last one wins;
    both without comments.
    """

    variables: dict[str, str] = {}
    files: dict[str, tuple[str, ...]] = {}
    parameters: dict[str, tuple[str, ...]] = {}


class MpiFacts(Facts, frozen=True, kw_only=True):
    """Group ``mpi``."""

    present: bool
    mpirun: str = ""
    family: str = ""
    version: str = ""
    daemon: str | None = None
    cuda: bool | None = None
    components: tuple[str, ...] = ()


class GpuProcess(Who, frozen=True, kw_only=True):
    """A process that computes on a GPU, with the bytes that it holds there."""

    mem_used: int | None = None


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
    persistence: int | None = None
    processes: tuple[GpuProcess, ...] = ()


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
    links_down: int = 0
    fabric_state: int | None = None
    fabric_status: int | None = None


class BrokenGpu(Facts, frozen=True, kw_only=True):
    """A GPU that NVML counts and cannot open."""

    index: int
    error: str = ""


class GpuFacts(Facts, frozen=True, kw_only=True):
    """Group ``gpu``. ``cuda_driver`` is 1000 x major + 10 x minor, as NVML gives it."""

    present: bool
    error: str = ""
    driver: str | None = None
    kernel_module: str = ""
    cuda_driver: int | None = None
    count: int = 0
    gpus: tuple[Gpu, ...] = ()
    broken: tuple[BrokenGpu, ...] = ()
    health: tuple[GpuHealth, ...] = ()
    devices: int = 0
    visible: str | None = None

    @property
    def models(self) -> dict[int, str]:
        """The model of each GPU by its index; empty where the driver does not say."""
        return {gpu.index: gpu.name or "" for gpu in self.gpus}


F = TypeVar("F", bound=Facts)


def convert(kind: type[F], answer: object) -> F:
    """Return a probe's answer as ``kind``.

    Raises:
        ValueError: if it is not one; the message says what does not fit.
    """
    try:
        return msgspec.convert(answer, threadsafe(kind), strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
