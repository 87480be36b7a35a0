"""What nodes say about themselves, as types with defaults; ``convert`` validates a probe's answer."""

from __future__ import annotations

from typing import ClassVar, TypeVar

import msgspec

from distconsole.model.decoding import threadsafe


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all facts: the name of their ``group`` in JSON; those asked for with it (``leans_on``)."""

    group: ClassVar[str] = ""
    leans_on: ClassVar[tuple[type[Facts], ...]] = ()


class Who(Facts, frozen=True, kw_only=True):
    """A process, without its arguments; ``pid`` is None if it cannot be seen."""

    pid: int | None = None
    uid: int = -1
    name: str = ""
    age_seconds: float | None = None


class SshFacts(Facts, frozen=True, kw_only=True):
    """How the host was reached. ``error_kind`` is empty when it was; see ``errors.NodeError``."""

    group: ClassVar[str] = "ssh"
    error_kind: str = ""
    error: str = ""
    hint: str = ""
    hostname: str = ""
    boot_id: str = ""
    reached_at: str = ""


class ClockFacts(Facts, frozen=True, kw_only=True):
    """The node's clock less ours in seconds, and the round trip that it was taken from."""

    group: ClassVar[str] = "clock"
    offset_seconds: float
    rtt_seconds: float = 0.0

    @property
    def error_seconds(self) -> float:
        """How wrong the offset may be at most (RFC 5905, section 8)."""
        return self.rtt_seconds / 2


class ResolvedAddress(Facts, frozen=True, kw_only=True):
    address: str
    bindable: bool = True
    error: str = ""


class Resolution(Facts, frozen=True, kw_only=True):
    """Addresses to which the host's own name resolves there."""

    addresses: tuple[ResolvedAddress, ...] = ()
    error: str = ""


class MountFacts(Facts, frozen=True, kw_only=True):
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
    mount: MountFacts | None = None
    error: str = ""


class CpuClocks(Facts, frozen=True, kw_only=True):
    """By governor the number of processors that it steers, and the driver below."""

    governors: dict[str, int] = {}
    driver: str = ""


class OsFacts(Facts, frozen=True, kw_only=True):
    """Limits are (soft, hard), None for unlimited."""

    group: ClassVar[str] = "os"
    hostname: str
    fqdn: str = ""
    resolution: Resolution = Resolution()
    filesystems: dict[str, Filesystem] = {}
    network_mounts: tuple[MountFacts, ...] = ()
    kernel: str = ""
    architecture: str = ""
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
    ends_at_logout: bool | None = None

    @property
    def busy(self) -> float:
        """How many processes there are for each processor, over the last minute."""
        return self.load1 / max(1, self.cpus)


class ContainerFacts(Facts, frozen=True, kw_only=True):
    """What the ranks run in: ``trouble`` where it cannot be entered, else what a process inside finds.

    ``lacks`` are folders of the node that it does not have; ``python`` is the interpreter's path in there, empty
    where there is none.
    """

    group: ClassVar[str] = "container"
    network: str = ""
    shares_memory: bool = True
    lacks: tuple[str, ...] = ()
    python: str = ""
    trouble: str = ""
    hint: str = ""


class PythonFacts(Facts, frozen=True, kw_only=True):
    """``shadowed``: the environment's versions of packages of which ``user_site`` has others that come first.

    ``user_only``: the packages that are in ``user_site`` and nowhere else.
    """

    group: ClassVar[str] = "python"
    version: str
    executable: str = ""
    prefix: str = ""
    packages: dict[str, str] = {}
    user_site: str = ""
    shadowed: dict[str, str] = {}
    user_only: tuple[str, ...] = ()


class TorchFacts(Facts, frozen=True, kw_only=True):
    """From its ``version.py``; torch itself was not imported."""

    group: ClassVar[str] = "torch"
    present: bool
    version: str = ""
    cuda: str | None = None
    hip: str | None = None
    git: str = ""
    nccl: str | None = None
    plugins: tuple[str, ...] = ()
    nccl_library: str | None = None
    nccl_on_path: tuple[str, ...] = ()
    error: str = ""


class HorovodFacts(Facts, frozen=True, kw_only=True):
    """From its ``metadata.json``, and from its library if that was loaded."""

    group: ClassVar[str] = "horovod"
    present: bool
    version: str = ""
    folder: str = ""
    against: dict[str, str] = {}
    torch_library: str | None = None
    built: dict[str, bool] | None = None
    load_error: str = ""
    mapped: tuple[str, ...] = ()


class MpiFacts(Facts, frozen=True, kw_only=True):
    group: ClassVar[str] = "mpi"
    present: bool
    mpirun: str = ""
    family: str = ""
    version: str = ""


class TrainingProcess(Who, frozen=True, kw_only=True):
    """A process that holds something, or should not be there any more.

    ``run_state`` is ``going on``, ``ended`` or ``gone`` for the run of ours in which it was started.
    ``wait_seconds`` is how long it was seen asleep in the kernel, in state D; ``where`` in which
    function. ``threads`` live on in a process that ended, state Z.
    """

    state: str = ""
    role: str = ""
    gpus: tuple[int, ...] = ()
    ports: tuple[int, ...] = ()
    run: str = ""
    run_state: str = ""
    orphan: bool = False
    wait_seconds: float = 0.0
    where: str = ""
    threads: int = 0
    parent: Who | None = None


class ProcFacts(Facts, frozen=True, kw_only=True):
    """What trains, or holds what training needs."""

    group: ClassVar[str] = "proc"
    uid: int
    processes: tuple[TrainingProcess, ...] = ()


class ImportFacts(Facts, frozen=True, kw_only=True):
    """Duration and result of an import of torch; ``late`` if it was given up after ``seconds``."""

    group: ClassVar[str] = "import"
    leans_on = (OsFacts,)
    present: bool
    error: str = ""
    seconds: float = 0.0
    late: bool = False
    architectures: tuple[str, ...] = ()
    nccl: str | None = None
    nccl_mapped: tuple[str, ...] = ()


class LifeFacts(Facts, frozen=True, kw_only=True):
    """Why a host that was reached answers no more, or "": ``agent_folder`` if only its agent ended."""

    group: ClassVar[str] = "life"
    lost: str = ""
    agent_folder: str = ""


class KernelEvent(Facts, frozen=True, kw_only=True):
    """Lines of one kind in the kernel's log: how many, and the last one with its age."""

    kind: str
    on: str = ""
    code: int | None = None
    count: int = 1
    age_seconds: float = 0.0
    text: str = ""


class KernelFacts(Facts, frozen=True, kw_only=True):
    """What its log says since the machine started; no ``source``: not readable."""

    group: ClassVar[str] = "kernel"
    source: str
    events: tuple[KernelEvent, ...] = ()


class ShmEntry(Facts, frozen=True, kw_only=True):
    """An entry of /dev/shm with an engine's name; ``used`` is None if unknown."""

    name: str
    kind: str = ""
    pid: int | None = None
    bytes: int = 0
    uid: int = -1
    age_seconds: float = 0.0
    used: bool | None = None


class ShmFacts(Facts, frozen=True, kw_only=True):
    """Where not all processes are seen (a container), others may use an entry."""

    group: ClassVar[str] = "shm"
    uid: int
    entries: tuple[ShmEntry, ...] = ()
    dropped: int = 0
    all_processes_seen: bool = True
    error: str = ""


F = TypeVar("F", bound=Facts)


def convert(kind: type[F], answer: object) -> F:
    """Return a probe's answer as ``kind``; raises ValueError, saying what does not fit."""
    try:
        return msgspec.convert(answer, threadsafe(kind), strict=True)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
