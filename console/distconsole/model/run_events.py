"""Events of a run: the lines of ``run --json``.

The classes with a tag keep the names and fields of the command line's contract: add fields, never
rename them. ``UNSET`` leaves a field out of the JSON, ``None`` writes null (unknown).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from distconsole.model.diagnosis.calls import Call
from distconsole.model.findings import Severity
from distconsole.model.run_summary import FirstFailure


class RankState(StrEnum):
    """Where a rank is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"
    KILLED = "killed"
    STALLED = "stalled"
    LOST = "lost"
    """Its host was lost: whether it lives, or how it ended, is not known."""


class EndState(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", gc=False):
    """A line of ``run --json``: ``t`` in UNIX seconds on the console's clock."""

    t: float
    run: str


class PlannedHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a plan: its global ranks, the command (or commands) and the environment."""

    host: str
    ranks: tuple[int, ...]
    command: str
    env: dict[str, str]


class PlanMade(RunEvent, frozen=True, kw_only=True, tag="plan"):
    """The processes of each host, and why by this launcher."""

    launcher: str
    why: str
    world_size: int
    hosts: tuple[PlannedHost, ...]
    name: str = ""
    script: str = ""
    found: bool | UnsetType = UNSET
    """Found on its hosts: distconsole did not start it, so its steps are not seen; left out otherwise."""
    told_by_node: bool | UnsetType = UNSET
    """Its first node reports its end to the webhook, so that no console does; left out otherwise."""
    starts: str | UnsetType = UNSET
    """The launcher that a shell script starts its ranks with, where those are watched; left out otherwise."""


class RankChanged(RunEvent, frozen=True, kw_only=True, tag="rank"):
    """A rank's life."""

    rank: int
    host: str
    local_rank: int
    pid: int | None
    state: RankState
    exit_code: int | UnsetType = UNSET
    signal: int | UnsetType = UNSET
    stopped: bool | UnsetType = UNSET
    """The stop's SIGTERM ended it."""


class PhaseReached(RunEvent, frozen=True, kw_only=True, tag="phase"):
    """A rank reached a start-up phase: interpreter, import_torch, rendezvous, init_process_group, first_step."""

    rank: int
    host: str
    phase: str
    seconds: float
    """Since the rank was started."""


class Window(RunEvent, frozen=True, kw_only=True, tag="window"):
    """A rank's last window (about one second); null if unknown."""

    rank: int
    step: int
    steps: int
    step_ms_mean: float | None
    step_ms_p95: float | None
    data_ms: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    samples_s: float | None
    metrics: dict[str, float]
    dropped: int
    host: str = ""
    skipped: int = 0
    """Steps whose optimizer did not run (a GradScaler found infinities)."""
    waited_ms: tuple[float, float, float, float, float] | None = None
    """How long it waited for other ranks in a step, its data, forward, backward and optimizer, as far as that is seen."""
    cpu_wait: float | None = None
    disk_wait: float | None = None
    """Percent of the time in which its main thread waited for a processor, and for a disk."""
    workers: tuple[int, float, float] | None = None
    """Of a rank that waits for data: how many workers its DataLoader has, percent of a processor that each
    uses, percent of them that wait for a disk."""
    unit: str | UnsetType = UNSET
    """``batches`` if the rank has made no step yet: its steps are batches of its DataLoaders."""


class Metric(RunEvent, frozen=True, kw_only=True, tag="metric"):
    """One metric over the ranks at a step: ``value`` is weighted by samples if every rank gave them."""

    name: str
    step: int
    value: float
    min: float
    max: float
    ranks: int
    samples: float | None


GpuKey: TypeAlias = tuple[str, str, str]
"""Host, UUID or number, MIG instance."""


class GpuSample(RunEvent, frozen=True, kw_only=True, tag="gpu"):
    """One GPU at one moment; null for values that the driver does not report."""

    host: str
    gpu: int
    util: float | None
    mem_used: int | None
    mem_total: int | None
    temp_c: float | None
    power_w: float | None
    rank: int | UnsetType = UNSET
    name: str = ""
    uuid: str = ""
    mig: str | None = None
    sm_clock_mhz: float | None = None
    mem_clock_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    ecc_uncorrected: int | None = None
    pcie_rx_s: float | None = None
    pcie_tx_s: float | None = None
    nvlink_rx_s: float | None = None
    nvlink_tx_s: float | None = None
    strangers: tuple[str, ...] = ()
    """Processes on it that are not of this run, as ``pid user command``."""
    pcie: tuple[int, int, int, int] | None = None
    """Lanes in use, and the most; generation in use, and the highest."""
    xid: int | None = None
    """The number of an error that the driver has reported within the last seconds."""

    @property
    def key(self) -> GpuKey:
        """Its identity among GPUs, and of a MIG instance among its neighbours, in every sample."""
        return self.host, self.uuid or str(self.gpu), self.mig or ""


class BusyProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a host: percent of one processor, and bytes of memory; secrets in its command are hidden."""

    pid: int
    user: str
    command: str
    cpu: float
    memory: int


class NodeSample(RunEvent, frozen=True, kw_only=True, tag="node"):
    """One host at one moment; bytes and bytes a second; null if psutil is missing."""

    host: str
    cpu: float | None
    mem_used: int | None
    mem_total: int | None
    net_rx_s: float | None
    net_tx_s: float | None
    disk_read_s: float | None = None
    disk_write_s: float | None = None
    load1: float | None = None
    cpus: int | None = None
    swap_in_s: float | None = None
    disk_wait: float | None = None
    """Percent of the time in which something waited for a disk."""
    net_errors_s: float | None = None
    """Errors and dropped packets of the interfaces."""
    net_resent_s: float | None = None
    """TCP segments that were sent again."""
    cpu_mhz: float | None = None
    """Highest frequency of the processors."""
    cpu_model: str | None = None
    processes: tuple[BusyProcess, ...] | UnsetType = UNSET
    """The processes that use the processors most, the busiest first; unset if they were not read for this sample."""


LogSource: TypeAlias = tuple[str, int | UnsetType, str]
"""Host, rank if it is one, stream."""


class LogLine(RunEvent, frozen=True, kw_only=True, tag="log"):
    """One line that a rank printed, without its end; ``transient`` if it ended in a bare return.

    Attributes:
        line: Its text, without anything that a terminal obeys.
        styled: The same with its colours (SGR sequences, a reset last); unset without any.
        ranks, hosts: Other speakers of the same line within seconds, first to last, if equal lines were
            folded into this one; unset otherwise.
    """

    host: str
    stream: str
    line: str
    rank: int | UnsetType = UNSET
    transient: bool = False
    styled: str | UnsetType = UNSET
    ranks: tuple[int, ...] | UnsetType = UNSET
    hosts: tuple[str, ...] | UnsetType = UNSET

    @property
    def source(self) -> LogSource:
        """Its source; the lines of each are in their order."""
        return self.host, self.rank, self.stream


class RunFinding(RunEvent, frozen=True, kw_only=True, tag="finding"):
    """A finding about a run: first failure, straggler, stall, lost node, NaN."""

    check: str
    severity: Severity
    summary: str
    hosts: tuple[str, ...] = ()
    seen: str = ""
    expected: str = ""
    hint: str = ""
    rank: int | UnsetType = UNSET
    ranks: tuple[int, ...] | UnsetType = UNSET
    """Several ranks for which the others of a hang wait."""
    kind: str | UnsetType = UNSET
    """Cause of the hang, a word of ``diagnosis.Kind``; unset if it was not found."""
    costs: float | UnsetType = UNSET
    """Percent of a step that a slow rank costs; unset if no rank waits for it."""


class RankCalled(RunEvent, frozen=True, kw_only=True, tag="roll_call"):
    """Where a rank is: asked as it stalled or starts for long, before a stop, or by a person (``why``: stalled, start, stop, asked)."""

    rank: int
    host: str
    why: str
    call: Call


class LinkChanged(RunEvent, frozen=True, kw_only=True, tag="link"):
    """The console lost or regained a host; the run goes on without it."""

    host: str
    connected: bool
    reason: str = ""


class RunRestarted(RunEvent, frozen=True, kw_only=True, tag="restart"):
    """The ranks restart, for the ``restart``-th time of at most ``of``, from 1."""

    restart: int
    of: int
    checkpoint: str | None = None
    """The path in their ``DISTCONSOLE_CHECKPOINT``, if one is known."""


class RunEnded(RunEvent, frozen=True, kw_only=True, tag="end"):
    """The last event of a run."""

    state: EndState
    exit_code: int
    seconds: float
    first_failure: FirstFailure | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    """Number of restarts; left out without any."""
    error: str | UnsetType = UNSET
    """Why it could not be started; left out if it was. ``exit_code`` is then ours, and the run is not stored."""
    hint: str | UnsetType = UNSET


RunEvents: TypeAlias = (
    PlanMade
    | RankChanged
    | PhaseReached
    | Window
    | Metric
    | GpuSample
    | NodeSample
    | LogLine
    | RunFinding
    | RankCalled
    | LinkChanged
    | RunRestarted
    | RunEnded
)
