"""Events in answer to a request; those of a run are in ``run_events``.

The classes with a tag are lines of ``--json`` too, and keep their names and fields.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from distconsole.model.comparison import ComparedCurves, Comparison
from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Diagnosis
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import CheckReport, CollectiveReport, PairReport, VerifiedReport
from distconsole.model.requests import Run
from distconsole.model.run_events import EndState, RunEvents
from distconsole.model.run_summary import RunSummary


class Narration(msgspec.Struct, frozen=True, kw_only=True):
    """A line for the person at the terminal (stderr)."""

    text: str
    severity: Severity = Severity.INFO


def warn(text: str) -> Narration:
    return Narration(text=text, severity=Severity.WARN)


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a check began or ended, on one ``host`` or on all of them."""

    check: str
    host: str
    outcome: str
    """running or pass."""
    judged: int = 0
    """How many checks have been judged, counted once for each host."""
    total: int = 0
    """Their number; 0 if unknown."""
    seconds: float = 0.0
    """How long the check has gone on."""
    going: tuple[str, ...] = ()
    """The stages that go on now."""
    answered: tuple[int, ...] = ()
    """How many hosts each of ``going`` has an answer of."""
    hosts: int = 0
    """Of how many."""


class CheckJudged(msgspec.Struct, frozen=True, kw_only=True):
    """How a check came out: a row of the host x check grid."""

    check: str
    outcomes: dict[str, str]
    """By host: pass, warn, fail, skipped, could_not_run, timed_out."""


class PairProgress(msgspec.Struct, frozen=True, kw_only=True):
    """News of pairs of hosts; later ones on a pair add to the earlier ones.

    Attributes:
        stage: ``reach`` or ``bandwidth``.
        hosts: All hosts of the check, in their order.
        pairs: New ones; in those of the stage ``bandwidth`` only ``gbit_s`` counts.
        round: Number of this round of the stage, from 1, and of rounds; 0 without rounds.
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


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A host was reached, or was not."""

    host: str
    reachable: bool
    detail: str = ""
    error_kind: str = ""
    hint: str = ""


class RunListed(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of ``runs``."""

    summary: RunSummary


class LaunchKept(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that was made before: its newest run, and the request that asks for it again."""

    summary: RunSummary
    request: Run


class LaunchersJudged(msgspec.Struct, frozen=True, kw_only=True):
    """Launchers that would refuse a launch, each with the reason."""

    refused: dict[str, str]


class ScriptSought(msgspec.Struct, frozen=True, kw_only=True):
    """Where a launch's script is not: hosts, and a name in that folder that may be meant, or empty."""

    script: str
    missing: tuple[str, ...]
    near: str = ""


class RunShown(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``show``."""

    summary: RunSummary


class RunsCompared(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``compare``; ``--json`` prints ``comparison``."""

    comparison: Comparison
    curves: tuple[ComparedCurves, ...]


class FoundJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that distconsole did not start, or a part of one, by its processes on the hosts.

    Attributes:
        number: From 1, of those that were found.
        launcher: The program that started it, such as ``torchrun``, or ``by hand``.
        where: Its meeting point, or its launcher's name for it; empty if unknown.
        run: Its id, if distconsole started it.
        world: The world size that its processes report.
        age_s: Since its first rank was started.
        ranks: Host -> rank -> pid.
        missing: Ranks of which no process was found.
    """

    number: int
    launcher: str
    script: str
    where: str
    run: str
    world: int
    age_s: float
    ranks: dict[str, dict[int, int]]
    missing: tuple[int, ...] = ()


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="why"):
    """The answer of ``why``: the rank that keeps a run, and the answers of all, by host.

    Attributes:
        t: UNIX seconds of the roll call.
        live: The ranks were asked now; else the answers were kept with the run.
        ended: Time of the run's end, if it has ended.
        job: The one of ``jobs`` that it is about, if hosts were asked and no run.
    """

    t: float
    run: str
    live: bool
    diagnosis: Diagnosis
    calls: dict[str, tuple[Call, ...]] = {}
    ended: float | None = None
    exit_code: int = 0
    job: int | None = None
    jobs: tuple[FoundJob, ...] = ()


class RankListed(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that a condition found: all ``fields`` in their units, null if unknown, and those to be ``shown``."""

    run: str
    fields: dict[str, float | str | bool | tuple[str, ...] | None]
    shown: tuple[str, ...]


class ConditionJudged(msgspec.Struct, frozen=True, kw_only=True):
    """How ``--fail-if`` came out: how many were ``asked`` (``of``: ``ranks``), matched, or are unknown."""

    condition: str
    of: str
    matched: int
    asked: int
    unknown: int

    @property
    def exit_code(self) -> int:
        return 1 if self.matched else 0


class DemoStep(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the demo begins: its number, of how many, and where to look."""

    number: int
    of: int
    title: str
    look: str


class DemoEnded(msgspec.Struct, frozen=True, kw_only=True):
    """The demo is over; its ``run``, if any, is kept; ``torch_lacks``: packages for ``demo --torch``."""

    run: str
    exit_code: int
    torch_lacks: tuple[str, ...]


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
    """Result of a strategy; null for unknown values."""

    strategy: str
    launcher: str
    ranks: int
    devices: int
    """Its devices: its ranks, or the GPUs of the one process of ``dp``."""
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
    """The result of ``bench strategies``; exit code 1 means that a strategy failed."""

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
    """The result of ``bench collectives``; ``left_out`` are sizes without time."""

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


Event: TypeAlias = (
    RunEvents
    | Narration
    | CheckProgress
    | CheckJudged
    | PairProgress
    | FindingMade
    | CheckEnded
    | HostStatus
    | RunListed
    | LaunchKept
    | LaunchersJudged
    | ScriptSought
    | RunShown
    | Diagnosed
    | RankListed
    | RunsCompared
    | ConditionJudged
    | DemoStep
    | DemoEnded
    | TextMade
    | BenchProgress
    | BenchRun
    | BenchEnded
    | CollectivesMeasured
)
