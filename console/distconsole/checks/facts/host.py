"""What a node says of its own state beyond ``facts``: processes, shared memory."""

from __future__ import annotations

from typing import Any

import msgspec

from distconsole.checks.facts.node import Facts, Who


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
    """Group ``proc``: ``unread`` processes were not looked into in time, ``dropped`` not told."""

    uid: int
    processes: tuple[TrainingProcess, ...] = ()
    dropped: int = 0
    unread: int = 0


class ImportFacts(Facts, frozen=True, kw_only=True):
    """Group ``import``: how an import of torch went; ``late`` where it was given up after ``seconds``."""

    present: bool
    error: str = ""
    seconds: float = 0.0
    late: bool = False
    version: str = ""
    architectures: tuple[str, ...] = ()
    nccl: str | None = None
    nccl_mapped: tuple[str, ...] = ()


class LifeFacts(Facts, frozen=True, kw_only=True):
    """Group ``life``: why a host that was reached does not answer any more; empty if it does.

    Attributes:
        agent_folder: The node folder, where the host is up and its agent alone ended.
    """

    lost: str = ""
    agent_folder: str = ""


class PeerName(Facts, frozen=True, kw_only=True):
    """What a name means on one host; ``late`` where its resolver did not answer in time."""

    addresses: tuple[str, ...] = ()
    error: str = ""
    late: bool = False


class NameFacts(Facts, frozen=True, kw_only=True):
    """Group ``names``: the names of all hosts, as this host resolves them."""

    names: dict[str, PeerName]


class KernelEvent(Facts, frozen=True, kw_only=True):
    """Lines of one kind in the kernel's log: how many, and the last one with its age."""

    kind: str
    on: str = ""
    code: int | None = None
    count: int = 1
    age_seconds: float = 0.0
    text: str = ""


class KernelFacts(Facts, frozen=True, kw_only=True):
    """Group ``kernel``: what its log says since the machine started; no ``source``: not readable."""

    source: str
    events: tuple[KernelEvent, ...] = ()
    error: str = ""


class RdmaPort(Facts, frozen=True, kw_only=True):
    """A port of an RDMA adapter; ``state`` is ACTIVE where it works."""

    device: str
    port: str
    state: str = ""
    physical: str = ""
    rate_gbit: float | None = None
    layer: str = ""
    counters: dict[str, int] = msgspec.field(default_factory=dict)


class FabricFacts(Facts, frozen=True, kw_only=True):
    """Group ``fabric``; ``fabric_manager`` is None without NVSwitch, or where it cannot be seen."""

    ports: tuple[RdmaPort, ...] = ()
    peer_memory: bool = False
    switches: int = 0
    fabric_manager: bool | None = None


class ShmEntry(Facts, frozen=True, kw_only=True):
    """An entry of /dev/shm that bears an engine's name; ``used`` is None where that is not known."""

    name: str
    kind: str = ""
    pid: int | None = None
    bytes: int = 0
    uid: int = -1
    folder: bool = False
    age_seconds: float = 0.0
    used: bool | None = None


class ShmFacts(Facts, frozen=True, kw_only=True):
    """Group ``shm``. Where not all processes are seen (a container), others may use an entry."""

    uid: int
    entries: tuple[ShmEntry, ...] = ()
    dropped: int = 0
    all_processes_seen: bool = True
    error: str = ""


class Login(Facts, frozen=True, kw_only=True):
    """One host's own ssh to another: by which ``name``; ``error`` is the kind of failure."""

    target: str
    name: str = ""
    ok: bool = False
    error: str = ""
    said: str = ""
    seconds: float = 0.0


class BetweenFacts(Facts, frozen=True, kw_only=True):
    """Group ``between``; ``client``: whether the host has an ssh at all."""

    client: bool = True
    logins: tuple[Login, ...] = ()


class MpiSshFacts(Facts, frozen=True, kw_only=True):
    """Group ``mpi_ssh``: what a plain mpirun over ssh started, one rank a host.

    The first host has it; those that only took part have no ``hosts``.
    """

    hosts: tuple[str, ...] = ()
    exit_code: int | None = None
    groups: tuple[dict[str, Any], ...] = ()
    said: tuple[str, ...] = ()
