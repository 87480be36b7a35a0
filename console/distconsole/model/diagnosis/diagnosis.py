"""Why a run stands still: the culprit, its activity, the ranks that wait for it, and how sure that is."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from distconsole.model.diagnosis.calls import Place


class Hang(StrEnum):
    """Cause of a run's standstill. Add words, never change one: programs read them."""

    HEALTHY = "healthy"
    STARTING = "starting"
    RENDEZVOUS = "rendezvous"
    FIRST_STEP = "first_step"
    EVALUATING = "evaluating"
    SAVING = "saving"
    TEARDOWN = "teardown"
    HOST_SILENT = "host_silent"
    NOT_STARTED = "not_started"
    LEFT = "left"
    """It has left the loop, or ended, while others train: it had fewer batches."""
    FAILED = "failed"
    KILLED = "killed"
    OUT_OF_MEMORY = "out_of_memory"
    STOPPED = "stopped"
    DEBUGGER = "debugger"
    INPUT = "input"
    DISK = "disk"
    SWAP = "swap"
    DATA_WORKER = "data_worker"
    DATA = "data"
    LOCK = "lock"
    BUSY = "busy"
    ELSEWHERE = "elsewhere"
    """It is not in the collective; its present activity is not known to be wrong."""
    OTHER_COLLECTIVE = "other_collective"
    MISMATCH = "mismatch"
    CROSSED = "crossed"
    EXCEPTION = "exception"
    ALL_WAIT = "all_wait"
    UNDECIDED = "undecided"


CALM = (
    *(Hang.HEALTHY, Hang.STARTING, Hang.RENDEZVOUS, Hang.FIRST_STEP),
    *(Hang.EVALUATING, Hang.SAVING, Hang.TEARDOWN),
)
"""Kinds that are no hang while they are as long as they used to be."""


class Sure(StrEnum):
    """How sure a diagnosis is."""

    CERTAIN = "certain"
    """It follows from the ranks' own records and the kernel's."""
    LIKELY = "likely"
    """It fits, and some evidence is missing."""
    UNKNOWN = "unknown"
    """The evidence does not decide; no rank is blamed."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The wait of most ranks: an operation, such as ``all_reduce #2507``, and its place in the script."""

    operation: str
    ranks: tuple[int, ...]
    place: Place | None = None
    seq: int | None = None
    group: str = ""
    payload: str = ""
    """Such as ``4 MiB float32``."""


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks whose main threads have equal stacks, innermost frame first."""

    ranks: tuple[int, ...]
    does: str
    place: Place | None
    """The innermost frame of the script's own code."""
    frames: tuple[Place, ...]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run does not go on, or that it does.

    Attributes:
        hang: Something is wrong; false for a run that is fine, or in a phase that takes its time.
        summary: One line; ``hint`` the remedy.
        short: The culprit and its activity alone, without the duration; as ``summary`` without a culprit.
        ranks: The culprits; empty if the evidence names none.
        place: Where the first of them is.
        operation: The operation that the others wait in.
        seconds: Time since the culprit's last step; None if unknown.
        waiting: The wait of most ranks; None without any.
        evidence: Further evidence, a line each.
        lacks: Ways to the stacks that were not possible, and the reason, a line each.
        away: Host -> why it does not answer.
    """

    kind: Hang
    sure: Sure
    hang: bool
    summary: str
    short: str = ""
    hint: str = ""
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    place: Place | None = None
    operation: str = ""
    seconds: float | None = None
    waiting: Waiting | None = None
    evidence: tuple[str, ...] = ()
    groups: tuple[StackGroup, ...] = ()
    ways: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    away: dict[str, str] = {}
