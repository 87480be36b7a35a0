"""The report of a check, in the shape of ``check --json``: add fields, never rename them."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from distconsole.model.findings import Finding


class PairReport(msgspec.Struct, frozen=True, kw_only=True):
    """One directed pair of hosts."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    rtt_us: float | None
    gbit_s: float | None
    reachable: bool = True
    error: str = ""


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
    """A change since the host last passed; empty text for a new or removed value."""

    host: str
    what: str
    was: str
    now: str


NOT_FORETOLD = "not foretold"
"""How a choice's ``how`` begins that only the engine itself can make."""


class ChoiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """An interface and address that an engine takes on a host.

    Attributes:
        start: ``run``: as ``distconsole run`` starts it; ``hand``: the library's own choice.
        how: By which of its rules.
        meets: Whether every other host reaches it there; null if unknown.
        why: The obstacle for the others.
    """

    engine: str
    start: str
    host: str
    interface: str
    address: str
    how: str
    meets: bool | None
    why: str = ""


class WayReport(msgspec.Struct, frozen=True, kw_only=True):
    """The ways that an engine took from the ranks of a host to those of another, or among themselves.

    ``via`` are its own names (``NET/IB/GDRDMA``, ``P2P/CUMEM``, ``tcp``); ``channels`` the most of a pair of
    ranks, 0 if the engine has none; ``devices`` the adapters or interfaces of ``source`` that it lists.
    """

    engine: str
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    via: tuple[str, ...]
    channels: int = 0
    devices: tuple[str, ...] = ()


class VerifiedReport(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of a type that was verified and not timed, or why it is not there."""

    op: str
    dtype: str
    elements: int
    correct: bool | None = None
    unsupported: str = ""


class TargetHost(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that one host would start for a checked launch; of its variables the names alone."""

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
    """The ranks' rendezvous by the launch itself; empty if ``run`` chooses it."""
    port: int | None = None
    """The rendezvous port if it is fixed; else the first host finds a free one."""
    fixed_by: str = ""
    brought: str = ""
    refused: str = ""
    missing: tuple[str, ...] = ()
    """Hosts that it needs, and that were not reached."""
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
    """The result of ``check --write-profile``.

    Attributes:
        written: The keys that were not there before.
        there: Those that were, with the same value.
        left: By check the setting that ``run`` makes by itself, so that none is written for it.
    """

    file: str
    written: tuple[ProfileLine, ...] = ()
    there: tuple[str, ...] = ()
    left: dict[str, str] = msgspec.field(default_factory=dict)


class CheckOutcome(StrEnum):
    """How a check came out as a whole."""

    HEALTHY = "healthy"
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    """A part of it could not be made: the rest is undecided."""


class CheckReport(msgspec.Struct, frozen=True, kw_only=True):
    """The object that ``check --json`` prints."""

    ok: bool
    """Whether ``outcome`` is healthy."""
    outcome: CheckOutcome
    """As ``check_outcome`` has it."""
    cancelled: bool = False
    """It was ended before its end (Ctrl-C, SIGTERM)."""
    terminated: bool = False
    """Whether that was SIGTERM."""
    only: tuple[str, ...] = ()
    """The words of ``--only``: of each some check was to be made."""
    hosts: dict[str, HostReport]
    findings: tuple[Finding, ...]
    network: NetworkReport
    collectives: tuple[CollectiveReport, ...]
    seconds: float
    choices: tuple[ChoiceReport, ...] = ()
    """Which interface and address each engine takes on each host."""
    ways: tuple[WayReport, ...] = ()
    """Connections that the engines of its jobs took between hosts, by their own words."""
    verified: tuple[VerifiedReport, ...] = ()
    left_out: tuple[str, ...] = ()
    """Collectives of a sweep for which there was no time."""
    cells: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """host -> check -> outcome, so that nothing is dropped silently."""
    why: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    """host -> check -> why it was skipped, could not run, timed out, or failed."""
    uncovered: tuple[str, ...] = ()
    """Questions that a green result leaves open."""
    stage_seconds: dict[str, float] = msgspec.field(default_factory=dict)
    """How long each stage took; most have the id of the check that they are for, and jobs may coincide."""
    changes: tuple[ChangeReport, ...] = ()
    """Of a check that failed: changes since the hosts last passed."""
    target: TargetReport | None = None
    """The checked launch, if one was given."""
    last_passed: float | None = None
    """Time of that check, in UNIX seconds; the earliest of the hosts. None if unknown."""
    profile: ProfileReport | None = None
    """Keys written into the configuration; None if not asked for."""
