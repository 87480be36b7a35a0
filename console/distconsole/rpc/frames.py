"""Messages of an agent, as frozen types with their bounds.

Unknown fields are ignored: an agent may send more than we read. Bounds are wider than those in
``distconsole_agent.contract.protocol``, so that only nonsense is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_ENTRIES = 1024
MAX_NAMES = 256
MAX_TEXT = 4 * 1024 * 1024

Name: TypeAlias = Annotated[str, Meta(max_length=512)]
Text: TypeAlias = Annotated[str, Meta(max_length=128 * 1024)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Small: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Port: TypeAlias = Annotated[int, Meta(ge=1, le=65535)]
Code: TypeAlias = Annotated[int, Meta(ge=-255, le=65535)]
Amount: TypeAlias = Annotated[float, Meta(ge=-1e18, le=1e18)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e12)]


class Frame(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of everything below."""


class Address(Frame, frozen=True, kw_only=True):
    iface: Name
    address: Name
    prefix: Small | None = None
    family: int = 4
    up: bool = True
    loopback: bool = False


class Hello(Frame, frozen=True, kw_only=True):
    """The agent's introduction; ``archive_sha256`` is of the file that the agent runs from, ``network`` its network namespace."""

    protocol: int
    version: Name
    agent_pid: Count
    hostname: Name
    boot_id: Name | None
    user: Name
    uid: Count
    python: Name
    python_version: Name
    cpus: Small | None
    node_dir: Name
    gpus: Small
    addresses: Annotated[tuple[Address, ...], Meta(max_length=4096)]
    archive_sha256: Name | None = None
    accelerator: bool = False
    network: Name = ""


class Pong(Frame, frozen=True, kw_only=True):
    """The node's clock, in UNIX nanoseconds."""

    time_ns: Count


class CoordinatorEndpoint(Frame, frozen=True, kw_only=True):
    address: Name
    port: Port


class Prepared(Frame, frozen=True, kw_only=True):
    """Answer of ``prepare``."""

    coordinator: CoordinatorEndpoint | None
    master_port: Port | None


class RunKnown(Frame, frozen=True, kw_only=True):
    """A run as its node knows it: ``protocol.RUN_FIELDS``."""

    run: Name
    name: Name
    state: Name
    created: Seconds
    script: Text
    launcher: Name
    world_size: Small
    node_index: Small
    nodes: Any
    last_seq: Count
    journal: Name = ""
    trouble: Text | None = None


class RunsAnswer(Frame, frozen=True, kw_only=True):
    """Answer of ``runs``."""

    runs: Annotated[tuple[RunKnown, ...], Meta(max_length=10_000)]


class Synced(Frame, frozen=True, kw_only=True):
    """Answer of ``sync``: the SHA-256 of the contents that the node lacks."""

    missing: Annotated[tuple[Name, ...], Meta(max_length=100_000)]


class NodeLoad(Frame, frozen=True, kw_only=True):
    """``protocol.NODE_FIELDS``."""

    cpu: Amount | None = None
    cpus: Small | None = None
    load1: Amount | None = None
    mem_used: Count | None = None
    mem_total: Count | None = None
    net_rx_s: Amount | None = None
    net_tx_s: Amount | None = None
    disk_read_s: Amount | None = None
    disk_write_s: Amount | None = None
    swap_in_s: Amount | None = None
    disk_wait: Amount | None = None
    net_errors_s: Amount | None = None
    net_resent_s: Amount | None = None
    cpu_mhz: Amount | None = None
    cpu_model: Name | None = None


class GpuProcess(Frame, frozen=True, kw_only=True):
    pid: Count
    user: Name | None = None
    command: Text | None = None
    mem_used: Count | None = None
    rank: Small | None = None


class GpuLoad(Frame, frozen=True, kw_only=True):
    """``protocol.GPU_FIELDS``; null for values that the driver does not report."""

    gpu: Small
    uuid: Name | None = None
    name: Name | None = None
    mig: Name | bool | None = None
    util: Amount | None = None
    mem_used: Count | None = None
    mem_total: Count | None = None
    temp_c: Amount | None = None
    power_w: Amount | None = None
    sm_clock_mhz: Amount | None = None
    mem_clock_mhz: Amount | None = None
    throttle: Annotated[tuple[Name, ...], Meta(max_length=64)] | Name | None = None
    ecc_uncorrected: Count | None = None
    pcie_rx_s: Amount | None = None
    pcie_tx_s: Amount | None = None
    nvlink_rx_s: Amount | None = None
    nvlink_tx_s: Amount | None = None
    rank: Small | None = None
    pcie: tuple[Small, Small, Small, Small] | None = None
    xid: Small | None = None
    processes: Annotated[tuple[GpuProcess, ...], Meta(max_length=4096)] | None = None


class ProcessLoad(Frame, frozen=True, kw_only=True):
    """``protocol.BUSY_FIELDS``."""

    pid: Count
    user: Name
    command: Text
    cpu: Amount
    memory: Count


class SampleBody(Frame, frozen=True, kw_only=True):
    """An item of ``watch``."""

    node: NodeLoad | None = None
    gpus: Annotated[tuple[GpuLoad, ...], Meta(max_length=1024)] = ()
    processes: Annotated[tuple[ProcessLoad, ...], Meta(max_length=64)] | None = None
    t: Seconds | None = None


class TraceTold(Frame, frozen=True, kw_only=True):
    """Result of a rank's trace; steps are -1 without one."""

    began_ns: Count = 0
    ended_ns: Count = 0
    written_ns: Count = 0
    first_step: int = -1
    last_step: int = -1
    error: Text = ""


class TraceItem(Frame, frozen=True, kw_only=True):
    """An item of ``trace``: first the ranks that are asked, then the outcome of each.

    ``bytes`` has the trace, and ``packed`` the file ``name`` that is to be taken.
    """

    tracing: Annotated[tuple[Count, ...], Meta(max_length=4096)] | None = None
    rank: Count = 0
    told: TraceTold = TraceTold()
    bytes: Count = 0
    name: Name = ""
    packed: Count = 0


class TracePiece(Frame, frozen=True, kw_only=True):
    """``base64`` of a piece of a packed trace."""

    data: Annotated[str, Meta(max_length=MAX_TEXT)]


class Entry(Frame, frozen=True, kw_only=True, tag_field="kind"):
    """A journal entry: ``seq`` from 1 without a gap, ``t`` in UNIX seconds on the node's clock."""

    seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    t: Seconds


class StateEntry(Entry, frozen=True, kw_only=True, tag="state"):
    rank: Small
    local_rank: Small
    pid: Count | None
    state: Name
    exit_code: Code | None = None
    signal: Small | None = None
    t_ns: Count | None = None
    planned: bool = False
    stopped: bool = False


class PhaseEntry(Entry, frozen=True, kw_only=True, tag="phase"):
    rank: Small
    phase: Name
    seconds: Amount
    world: Small | None = None
    group_rank: Small | None = None
    planned: Small | None = None
    alone: bool = False
    child: bool = False


class MetricPoint(NamedTuple):
    """A value that a rank gave at a step; ``samples`` is its weight, null if unknown."""

    step: Count
    value: float | None
    samples: float | None


Waited: TypeAlias = tuple[float | None, float | None, float | None, float | None, float | None]


class WindowEntry(Entry, frozen=True, kw_only=True, tag="window"):
    """About a second of a rank's steps; floats may be NaN or infinite, as a loss may."""

    rank: Small
    step: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    steps: Count
    skipped: Count = 0
    step_ms: tuple[float | None, float | None] | None = None
    data_ms: float | None = None
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    waited_ms: Waited | None = None
    cpu_wait: Amount | None = None
    disk_wait: Amount | None = None
    workers: tuple[Small, Amount, Amount] | None = None
    batches: bool = False
    samples_s: float | None = None
    metrics: Annotated[dict[Name, float | None], Meta(max_length=MAX_NAMES)] = msgspec.field(
        default_factory=dict
    )
    dropped: Count = 0
    points: Annotated[
        dict[Name, Annotated[list[MetricPoint], Meta(max_length=4096)]], Meta(max_length=MAX_NAMES)
    ] = msgspec.field(default_factory=dict)


class CheckEntry(Entry, frozen=True, kw_only=True, tag="check"):
    """A rank's check of itself; only checks of equal ``layout`` may be compared."""

    rank: Small
    step: Count
    parameters: Name | None = None
    state: Name | None = None
    batch: Name | None = None
    layout: Count = 0
    wrapped: bool = False
    same_epoch: bool = False
    place: tuple[Small, Small] | None = None
    bad_gradient: Small | None = None
    details: Annotated[str, Meta(max_length=8192)] | None = None
    names: Annotated[tuple[Name, ...], Meta(max_length=1024)] | None = None


class SampleEntry(Entry, frozen=True, kw_only=True, tag="sample"):
    node: NodeLoad | None = None
    gpus: Annotated[tuple[GpuLoad, ...], Meta(max_length=1024)] = ()


class LogEntry(Entry, frozen=True, kw_only=True, tag="log"):
    """A slice of output, cut anywhere and not cleaned: join to lines, then ``log_text``."""

    rank: Small | None
    stream: Name
    offset: Count
    text: Annotated[str, Meta(max_length=MAX_TEXT)]


class PrintedEntry(LogEntry, frozen=True, kw_only=True, tag="log", forbid_unknown_fields=True):
    """One without any other text than these."""


class FailureEntry(Entry, frozen=True, kw_only=True, tag="failure"):
    """A node's evidence on a rank that failed by itself; ``traceback`` keeps its newlines."""

    rank: Small
    t_ns: Count
    exit_code: Code | None = None
    signal: Small | None = None
    error: Text | None = None
    traceback: Text | None = None


class NoteEntry(Entry, frozen=True, kw_only=True, tag="note"):
    check: Name
    severity: Name
    summary: Text
    hint: Text | None = None
    rank: Small | None = None
    host: Name | None = None
    seen: Text | None = None


class FailedFirst(Frame, frozen=True, kw_only=True):
    """The rank that failed first."""

    rank: Small
    host: Name
    exit_code: Code
    error: Text | None = None
    signal: Small | None = None
    traceback: Text | None = None


class VerdictEntry(Entry, frozen=True, kw_only=True, tag="verdict"):
    """The coordinator's, the same on every node."""

    state: Name
    exit_code: Code
    first_failure: FailedFirst | None = None


class RestartEntry(Entry, frozen=True, kw_only=True, tag="restart"):
    """An attempt failed, and after ``pause`` seconds another follows: the first node's."""

    restart: Small
    of: Small
    checkpoint: Annotated[str, Meta(max_length=4096)] | None = None
    pause: Seconds = 0.0
    first_failure: FailedFirst | None = None


class AttemptEntry(Entry, frozen=True, kw_only=True, tag="attempt"):
    """All later entries are of this attempt: on every node."""

    restart: Small
    of: Small
    checkpoint: Annotated[str, Meta(max_length=4096)] | None = None


class RollCallEntry(Entry, frozen=True, kw_only=True, tag="roll_call"):
    """Where a rank is: ``call`` is for ``roll_calls.read_call``, so that a wrong field costs no journal."""

    rank: Small
    why: Name = ""
    call: dict[str, Any] = msgspec.field(default_factory=dict)


class EndEntry(Entry, frozen=True, kw_only=True, tag="end"):
    """The last entry; nothing of the run is left on this node."""

    state: Name
    exit_code: Code
    seconds: Seconds


JournalEntry: TypeAlias = (
    StateEntry
    | PhaseEntry
    | WindowEntry
    | CheckEntry
    | SampleEntry
    | LogEntry
    | FailureEntry
    | NoteEntry
    | VerdictEntry
    | RestartEntry
    | AttemptEntry
    | RollCallEntry
    | EndEntry
)


class JournalNews(Frame, frozen=True, kw_only=True):
    """Fields of an item of ``follow`` beside its entries."""

    trouble: Annotated[str, Meta(max_length=8192)] | None = None
    """Why the node cannot write the journal for now; empty when it can again."""
    journal: Name = ""  # writer of the last of the entries; empty for the first version
    after: Count | None = None  # the journal has no more than this of the entries known here


class RawEntries(JournalNews, frozen=True, kw_only=True):
    """An item of ``follow``, its entries as they came."""

    entries: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MAX_ENTRIES)]


class Entries(JournalNews, frozen=True, kw_only=True):
    """An item of ``follow`` as ``rpc.wire`` gives it on; ``bodies`` are its entries as JSON."""

    entries: tuple[JournalEntry, ...] = ()
    bodies: tuple[bytes, ...] = ()
    unread: int = 0  # that came with them, and were left out


class JobPart(Frame, frozen=True, kw_only=True):
    """The part of a job on one host, by ``survey``; ``ranks`` are calls, to be read one by one."""

    key: Name
    launcher: Name = ""
    script: Name = ""
    endpoint: Name = ""
    ident: Name = ""
    here: bool = True
    spawned: bool = False
    leads: bool = False
    run: Name = ""
    size: Small = 0
    age_s: Seconds = 0.0
    gone: Annotated[tuple[Small, ...], Meta(max_length=4096)] = ()
    ranks: Annotated[tuple[dict[str, Any], ...], Meta(max_length=4096)] = ()


class LogPart(Frame, frozen=True, kw_only=True):
    """New part of a ranks' output file; ``next`` is the byte from which to go on."""

    key: Name
    """Of the job."""
    path: Name
    inode: Count
    stream: Name
    ranks: Annotated[tuple[Small, ...], Meta(max_length=4096)]
    next: Count
    output: Text = ""


class Survey(Frame, frozen=True, kw_only=True):
    """The answer of ``survey`` on one host; ``ras`` are the faults that NCCL reports, a line each."""

    jobs: Annotated[tuple[JobPart, ...], Meta(max_length=MAX_ENTRIES)]
    logs: Annotated[tuple[LogPart, ...], Meta(max_length=MAX_ENTRIES)] = ()
    ras: Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)] = ()
    user: Name = ""


class RawAnswer(Frame, frozen=True, kw_only=True):
    """One line from an agent, of which only the stream's id is read."""

    id: Count
    item: msgspec.Raw = msgspec.Raw()
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


class Answer(Frame, frozen=True, kw_only=True):
    """One line from an agent; exactly one of ``item``, ``result`` and ``error`` is set."""

    id: Count
    item: dict[str, Any] | UnsetType = UNSET
    result: dict[str, Any] | UnsetType = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class Refused(Frame, frozen=True, kw_only=True):
    code: Name
    message: Text
    hint: Text = ""
