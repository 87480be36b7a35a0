"""Everything that can happen in answer to a request.

The classes with a tag are the lines of ``run --json`` and keep the names and fields of the command
line's contract: add fields, never rename them. ``UNSET`` leaves a field out of the JSON, ``None``
writes null (unknown).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from distconsole.model.findings import Finding, Severity


class RankState(StrEnum):
    """Where a rank is in its life."""

    STARTING = "starting"
    RUNNING = "running"
    EXITED = "exited"
    FAILED = "failed"
    KILLED = "killed"
    STALLED = "stalled"


class EndState(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


class RunEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
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
    """What will run where, and why by this launcher."""

    launcher: str
    why: str
    world_size: int
    hosts: tuple[PlannedHost, ...]
    name: str = ""
    script: str = ""


class RankChanged(RunEvent, frozen=True, kw_only=True, tag="rank"):
    """A rank's life."""

    rank: int
    host: str
    local_rank: int
    pid: int | None
    state: RankState
    exit_code: int | UnsetType = UNSET
    signal: int | UnsetType = UNSET


class PhaseReached(RunEvent, frozen=True, kw_only=True, tag="phase"):
    """A rank reached a start-up phase: interpreter, import_torch, init_process_group, first_step."""

    rank: int
    host: str
    phase: str
    seconds: float
    """Since the rank was started."""


class Window(RunEvent, frozen=True, kw_only=True, tag="window"):
    """A rank's last window (about one second); null where unknown."""

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


class Metric(RunEvent, frozen=True, kw_only=True, tag="metric"):
    """One metric reduced over the ranks at one step.

    ``value`` is the sample-weighted mean when every rank gave its samples, else the plain mean.
    """

    name: str
    step: int
    value: float
    min: float
    max: float
    ranks: int
    samples: float | None


class GpuSample(RunEvent, frozen=True, kw_only=True, tag="gpu"):
    """One GPU at one moment; null where the driver does not say."""

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


class NodeSample(RunEvent, frozen=True, kw_only=True, tag="node"):
    """One host at one moment; bytes and bytes a second; null where psutil is missing."""

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


class LogLine(RunEvent, frozen=True, kw_only=True, tag="log"):
    """One line that a rank printed, without its end; ``transient`` if it ended in a bare return.

    Attributes:
        line: Its text, without anything that a terminal obeys.
        styled: The same with its colours (SGR sequences, a reset last); unset where it has none.
        ranks, hosts: Who else said the same within seconds, first to last, where equal lines were
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


class LinkChanged(RunEvent, frozen=True, kw_only=True, tag="link"):
    """The console lost or regained a host; the run goes on without it."""

    host: str
    connected: bool
    reason: str = ""


class RunRestarted(RunEvent, frozen=True, kw_only=True, tag="restart"):
    """The ranks start anew, for the ``restart``-th time of at most ``of``, from 1."""

    restart: int
    of: int
    checkpoint: str | None = None
    """The path that they find in ``DISTCONSOLE_CHECKPOINT``, where one is known."""


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that failed first, by nanosecond times corrected for clock offsets."""

    rank: int
    host: str
    exit_code: int
    error: str
    signal: int | UnsetType = UNSET
    traceback: str = ""


class RunEnded(RunEvent, frozen=True, kw_only=True, tag="end"):
    """The last event of a run."""

    state: EndState
    exit_code: int
    seconds: float
    first_failure: FirstFailure | UnsetType = UNSET
    restarts: int | UnsetType = UNSET
    """How often the ranks were started anew; left out where they were not."""


# Events below are not lines of ``run --json``: they answer other requests.


class Narration(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the person at the terminal (stderr)."""

    text: str
    severity: Severity = Severity.INFO


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A check began or ended on hosts; for progress and for the host x check grid."""

    check: str
    host: str
    outcome: str
    """running, pass, warn, fail, skipped, could_not_run, timed_out."""
    why: str = ""


class PairReport(msgspec.Struct, frozen=True, kw_only=True):
    """One directed pair of hosts."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    rtt_us: float | None
    gbit_s: float | None
    reachable: bool = True
    error: str = ""


class PairProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What has become known of pairs of hosts; a later word on a pair adds to the earlier ones.

    Attributes:
        stage: ``reach`` or ``bandwidth``.
        hosts: All hosts of the check, in their order.
        pairs: What is new; ``gbit_s`` alone counts of those of the stage ``bandwidth``.
        round: Which round of the stage this is of, from 1, and of how many; 0 where there are none.
    """

    stage: str
    hosts: tuple[str, ...]
    pairs: tuple[PairReport, ...]
    round: int = 0
    rounds: int = 0


class FindingMade(msgspec.Struct, frozen=True, kw_only=True):
    """A check's conclusion, as soon as it is there."""

    finding: Finding


class CheckEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report, in the shape of ``check --json``."""

    report: CheckReport


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """One host of a report; facts by group as the node gave them."""

    reachable: bool
    facts: dict[str, dict[str, object]]


class NetworkReport(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs that were tried."""

    pairs: tuple[PairReport, ...] = ()


class CollectiveReport(msgspec.Struct, frozen=True, kw_only=True):
    """One collective at one size; bandwidths in 1e9 bytes a second, by nccl-tests' formulae."""

    launcher: str
    backend: str
    op: str
    bytes: int
    time_us: float
    algbw_gbs: float
    busbw_gbs: float
    correct: bool
    size: int
    ranks: tuple[int, ...]
    dtype: str = "float32"


class ChangeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What is not as it was when the host last passed; empty text where it was not, or is no more."""

    host: str
    what: str
    was: str
    now: str


class ChoiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """An interface and address that an engine takes on a host.

    Attributes:
        start: ``run``: as ``distconsole run`` starts it; ``hand``: what the library finds by itself.
        how: By which of its rules.
        meets: Whether every other host reaches it there; null where that is not known.
        why: What keeps the others away.
    """

    engine: str
    start: str
    host: str
    interface: str
    address: str
    how: str
    meets: bool | None
    why: str = ""


class VerifiedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a type that was verified and not timed, or why it is not there."""

    op: str
    dtype: str
    elements: int
    correct: bool | None = None
    unsupported: str = ""


class TargetHost(msgspec.Struct, frozen=True, kw_only=True):
    """What one host would start of a launch that was checked; of its variables the names alone."""

    host: str
    ranks: tuple[int, ...]
    python: str = ""
    address: str = ""
    interface: str | None = None
    env: tuple[str, ...] = ()


class TargetReport(msgspec.Struct, frozen=True, kw_only=True):
    """The launch that was checked."""

    command: tuple[str, ...]
    script: str
    module: bool = False
    workdir: str = ""
    launcher: str = ""
    why: str = ""
    world_size: int = 0
    hosts: tuple[TargetHost, ...] = ()
    address: str = ""
    """Where the launch itself says that ranks meet; empty where ``run`` chooses it."""
    port: int | None = None
    """The rendezvous port where it is fixed; else the first host finds one that is free."""
    fixed_by: str = ""
    brought: str = ""
    refused: str = ""
    notes: tuple[str, ...] = ()


class ProfileLine(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was written into a configuration, the check that it is for, and its proof."""

    table: list[str]
    key: str
    value: str
    check: str
    before: str
    after: str


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """What ``check --write-profile`` did.

    Attributes:
        written: The keys that were not there before.
        there: Those that were, with the same value.
        left: By check what ``run`` does by itself, so that nothing is written for it.
    """

    file: str
    written: tuple[ProfileLine, ...] = ()
    there: tuple[str, ...] = ()
    left: dict[str, str] = msgspec.field(default_factory=dict)


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The object that ``check --json`` prints."""

    ok: bool
    hosts: dict[str, HostReport]
    findings: tuple[Finding, ...]
    network: NetworkReport
    collectives: tuple[CollectiveReport, ...]
    seconds: float
    choices: tuple[ChoiceReport, ...] = ()
    """Which interface and address each engine takes on each host."""
    verified: tuple[VerifiedReport, ...] = ()
    left_out: tuple[str, ...] = ()
    """Collectives of a sweep for which there was no time."""
    cells: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """host -> check -> outcome, so that nothing is dropped silently."""
    why: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """host -> check -> why it was skipped, could not run, timed out, or failed."""
    uncovered: tuple[str, ...] = ()
    """What a green result does not say."""
    changes: tuple[ChangeReport, ...] = ()
    """Of a check that failed: what has changed since the hosts last passed."""
    target: TargetReport | None = None
    """The launch that was checked, where one was given."""
    last_passed: float | None = None
    """When that was, in UNIX seconds; the earliest of the hosts. None where it is not known."""
    profile: ProfileReport | None = None
    """What was written into the configuration; None where that was not asked for."""


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A host was reached, or was not."""

    host: str
    reachable: bool
    detail: str = ""
    rtt_ms: float | None = None
    error_kind: str = ""
    hint: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list, or one run's summary (``show``)."""

    run: str
    name: str
    state: str
    """running, unknown, succeeded, failed or stopped."""
    started: float
    seconds: float | None
    script: str
    launcher: str
    world_size: int
    hosts: tuple[str, ...]
    exit_code: int | None = None
    steps: int | None = None
    samples_s: float | None = None
    step_ms_spread: float | None = None
    """Slowest rank's mean step time over the fastest's."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    first_failure: FirstFailure | None = None
    restarts: int = 0
    """How often its ranks were started anew."""
    last_seen: float | None = None
    """When a run whose end is not known was last known to run, UNIX seconds."""


class RunListed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``runs``."""

    summary: RunSummary


class RunShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``show``."""

    summary: RunSummary


class RankListed(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that a condition found.

    Attributes:
        fields: Everything that conditions can ask of it, by name, in the unit of the field; null where
            unknown.
        shown: Those that a person should see: what it is, and what was asked.
    """

    run: str
    fields: dict[str, float | str | bool | tuple[str, ...] | None]
    shown: tuple[str, ...]


class ConditionJudged(msgspec.Struct, frozen=True, kw_only=True):
    """How ``--fail-if`` came out.

    Attributes:
        condition: As it was written.
        of: What it was asked of: ``ranks``.
        matched: How many match, and are bad.
        asked: How many were asked.
        unknown: Of how many it is not known.
    """

    condition: str
    of: str
    matched: int
    asked: int
    unknown: int

    @property
    def exit_code(self) -> int:
        """1 if any match."""
        return 1 if self.matched else 0


class TextMade(msgspec.Struct, frozen=True, kw_only=True):
    """Data for stdout (an export, a log line, help)."""

    text: str


class BenchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run of ``bench strategies`` is."""

    strategy: str
    round: int
    rounds: int
    step: int | None = None


class BenchRun(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="bench_run"):
    """A run of ``bench strategies`` that ended, at ``t``; ``run`` is empty if it was not launched."""

    t: float
    run: str
    strategy: str
    round: int
    rounds: int
    state: EndState
    exit_code: int
    seconds: float
    """From its first process to its end."""
    samples_s: float | None = None
    """Images a second that all ranks trained with; tests and, if there are more, the first epoch left out."""
    loss: float | None = None
    accuracy: float | None = None
    gpu_util: float | None = None
    error: str = ""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over the rounds."""

    median: float
    lowest: float
    highest: float


class BenchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy came to; null where nothing is known."""

    strategy: str
    launcher: str
    ranks: int
    devices: int
    """What it trained on: its ranks, or the GPUs of the one process of ``dp``."""
    rounds: int
    """Those that succeeded."""
    seconds: Spread | None
    samples_s: Spread | None
    speedup: Spread | None
    """Samples a second over those of ``single`` in the same round."""
    efficiency: Spread | None
    """The speed-up over ``devices``."""
    loss: Spread | None
    accuracy: Spread | None
    gpu_util: Spread | None
    error: str = ""


class BenchSkipped(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that cannot run on these hosts."""

    strategy: str
    reason: str


class BenchEnded(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="bench"):
    """The result of ``bench strategies``; 1 as the exit code says that a strategy failed."""

    what: str
    hosts: tuple[str, ...]
    images: int
    batch: int
    """Images that a device reads at once."""
    epochs: int
    width: int
    precision: str
    rounds: int
    strategies: tuple[BenchResult, ...]
    skipped: tuple[BenchSkipped, ...]
    seconds: float
    state: EndState
    exit_code: int


class CollectivesMeasured(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="bench_collectives"
):
    """The result of ``bench collectives``; ``left_out`` are sizes for which there was no time."""

    hosts: tuple[str, ...]
    launcher: str
    backend: str
    size: int
    collectives: tuple[CollectiveReport, ...]
    verified: tuple[VerifiedReport, ...]
    left_out: tuple[str, ...]
    findings: tuple[Finding, ...]
    seconds: float
    state: EndState
    exit_code: int


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
    | LinkChanged
    | RunRestarted
    | RunEnded
)

Event: TypeAlias = (
    RunEvents
    | Narration
    | CheckProgress
    | PairProgress
    | FindingMade
    | CheckEnded
    | HostStatus
    | RunListed
    | RunShown
    | RankListed
    | ConditionJudged
    | TextMade
    | BenchProgress
    | BenchRun
    | BenchEnded
    | CollectivesMeasured
)
