"""Reports and ends of the ranks of short jobs, and facts of Slurm and munge."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from distconsole.checks.facts.gpu import GpuFacts
from distconsole.checks.facts.network import BetweenFacts, NetFacts, ReachFacts
from distconsole.checks.facts.node import Facts, HorovodFacts, MpiFacts, TorchFacts


class RankReport(Facts, frozen=True, kw_only=True):
    """Report of one rank of the collective job, and its end (None: killed at the deadline)."""

    rank: int
    exit_code: int | None = None
    seconds: float = 0.0
    said: tuple[dict[str, Any], ...] = ()
    error: tuple[str, ...] = ()


class Took(Facts, frozen=True, kw_only=True):
    """What one rank's engine said of the ways that it took (``engine_words`` of the agent).

    Attributes:
        pairs: Rank, rank, way, channels; Open MPI's and UCX's ways have no channels.
        gids: Number of the device, index, whether the address is link-local.
        set: The variables of NCCL that it found.
        without_gdr: Devices, and GPUs, for which GPUDirect RDMA is off.
        trouble: Its warnings.
        sockets: Addresses of its TCP connections, here and there.
    """

    engine: str
    network: str = ""
    devices: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    pairs: tuple[tuple[int, int, str, int], ...] = ()
    set: dict[str, str] = msgspec.field(default_factory=dict)
    gids: tuple[tuple[int, int, bool], ...] = ()
    without_gdr: tuple[str, ...] = ()
    trouble: tuple[str, ...] = ()
    sockets: tuple[tuple[str, str], ...] = ()
    no_device: bool = False


class CollFacts(Facts, frozen=True, kw_only=True):
    """A host's ranks of a collective job; ``refused`` says why a run by this launcher would not start."""

    group: ClassVar[str] = "coll"
    leans_on: ClassVar[tuple[type[Facts], ...]] = (ReachFacts, NetFacts, TorchFacts, GpuFacts)
    launcher: str = "torch"
    backend: str = ""
    world_size: int = 0
    planned: tuple[int, ...] = ()
    ranks: tuple[RankReport, ...] = ()
    timeout_seconds: float = 0.0
    engine_said: tuple[str, ...] = ()
    refused: str = ""
    refused_hint: str = ""


class HorovodCollFacts(CollFacts, frozen=True, kw_only=True):
    group: ClassVar[str] = "coll_horovod"
    leans_on = (ReachFacts, NetFacts, HorovodFacts, GpuFacts)


class MpiCollFacts(CollFacts, frozen=True, kw_only=True):
    """The same by mpirun; its ranks call MPI itself."""

    group: ClassVar[str] = "coll_mpi"
    leans_on = (ReachFacts, NetFacts, MpiFacts, GpuFacts)


class MpiSshFacts(Facts, frozen=True, kw_only=True):
    """Result of a plain mpirun over ssh, one rank a host; only the first host has ``hosts``."""

    group: ClassVar[str] = "mpi_ssh"
    leans_on = (BetweenFacts, ReachFacts, NetFacts, MpiFacts)
    hosts: tuple[str, ...] = ()
    exit_code: int | None = None
    groups: tuple[dict[str, Any], ...] = ()
    said: tuple[str, ...] = ()


class Controller(Facts, frozen=True, kw_only=True):
    host: str
    up: bool = False


class SlurmFacts(Facts, frozen=True, kw_only=True):
    """``why`` says why there is none.

    ``node`` is what the controller has of the host, by the names of ``scontrol show node``, None where
    it knows none; ``hardware`` likewise by ``slurmd -C``. With ``overrides`` slurmd believes the
    configuration whatever the hardware is. ``auth`` is Slurm's ``AuthType``, empty where unknown.
    """

    group: ClassVar[str] = "slurm"
    present: bool
    why: str = ""
    version: str = ""
    controllers: tuple[Controller, ...] = ()
    controller_error: str = ""
    node: dict[str, str] | None = None
    hardware: dict[str, str] | None = None
    overrides: bool = False
    auth: str = ""
    munge_error: str = ""

    @property
    def by_munge(self) -> bool:
        """Whether munge says who asks Slurm, as by default; from 23.11 on auth/slurm may."""
        return self.auth in ("", "auth/munge")


class Decoded(Facts, frozen=True, kw_only=True):
    """A credential of the host ``source`` as this one decoded it; times are UNIX seconds."""

    source: str
    status: str = ""
    encoded: int | None = None
    decoded: int | None = None
    error: str = ""


class MungeFacts(Facts, frozen=True, kw_only=True):
    group: ClassVar[str] = "munge"
    leans_on = (SlurmFacts,)
    decoded: tuple[Decoded, ...] = ()


class StepFacts(Facts, frozen=True, kw_only=True):
    """Soft limits inside a step of the allocation ``job`` on the host, None for none."""

    group: ClassVar[str] = "slurm_step"
    leans_on = (SlurmFacts,)
    job: str
    limits: dict[str, int | None] = msgspec.field(default_factory=dict)
    error: str = ""
