"""What a run's events let one conclude, in words for a person. It detects nothing itself."""

from __future__ import annotations

from msgspec import UNSET

from distconsole.model.events import FirstFailure, RunFinding
from distconsole.model.findings import Severity
from distconsole.monitor.points import Point
from distconsole.monitor.stragglers import Straggler
from distconsole.remote.frames import NoteEntry

MAX_SUMMARY_CHARS = 240
"""Of an error in a summary; the whole of it is in the traceback."""

_SLOW_DEVICE = "its device computes slowly: look for heat, a lower clock, or another job on it"
STRAGGLER_HINTS = {
    "data": "its data come late: more DataLoader workers there, or a faster disk for that host",
    "forward": _SLOW_DEVICE,
    "optimizer": _SLOW_DEVICE,
    "step": _SLOW_DEVICE,
}


def first_failure_finding(run: str, first: FirstFailure, t: float) -> RunFinding:
    """Return who failed first, with its traceback in ``seen``."""
    return RunFinding(
        t=t,
        run=run,
        check="run.first_failure",
        severity=Severity.FAIL,
        hosts=(first.host,),
        rank=first.rank,
        summary=f"rank {first.rank} on {first.host} failed first: {_short(first)}",
        seen=first.traceback,
        expected="every rank ends with exit code 0",
        hint=f"distconsole logs {run} --rank {first.rank}",
    )


def _short(first: FirstFailure) -> str:
    error = first.error or f"exit code {first.exit_code}"
    return error if len(error) <= MAX_SUMMARY_CHARS else f"{error[:MAX_SUMMARY_CHARS]}…"


def straggler_finding(run: str, host: str, slow: Straggler, t: float) -> RunFinding:
    """Return which rank the others wait for, and in which part of the step."""
    where = "its steps" if slow.part == "step" else f"the {slow.part} part of its steps"
    return RunFinding(
        t=t,
        run=run,
        check="run.straggler",
        severity=Severity.WARN,
        hosts=(host,) if host else (),
        rank=slow.rank,
        summary=f"rank {slow.rank} on {host} is slow in {where}: "
        f"{slow.excess_ms:.3g} ms more than the others, of {slow.step_ms:.3g} ms a step",
        seen=f"{slow.own_ms:.3g} ms there; median of the others {slow.median_ms:.3g} ms",
        expected="less than a tenth of a step between the ranks",
        hint=STRAGGLER_HINTS.get(slow.part, ""),
    )


def stall_finding(run: str, host: str, rank: int, t: float) -> RunFinding:
    """Return that a rank lives and makes no step."""
    return RunFinding(
        t=t,
        run=run,
        check="run.stall",
        severity=Severity.WARN,
        hosts=(host,),
        rank=rank,
        summary=f"rank {rank} on {host} has stopped making steps",
        expected="a step within ten times the usual time",
        hint=f"distconsole logs {run} --rank {rank}; distconsole stop {run}",
    )


def not_finite_finding(
    run: str, host: str, rank: int, where: tuple[str, Point], t: float
) -> RunFinding:
    """Return that a metric is NaN or infinite; ``where`` is its name and the point."""
    name, point = where
    return RunFinding(
        t=t,
        run=run,
        check="run.not_finite",
        severity=Severity.WARN,
        hosts=(host,),
        rank=rank,
        summary=f"{name} is {point.value} at step {point.step} on rank {rank}",
        seen=f"{name} = {point.value}",
        expected="a finite number",
        hint="look at the learning rate, at gradient clipping, and at this step's data",
    )


def note_finding(run: str, host: str, entry: NoteEntry, t: float) -> RunFinding:
    """Return what a node has to say."""
    try:
        severity = Severity(entry.severity)
    except ValueError:
        severity = Severity.INFO
    return RunFinding(
        t=t,
        run=run,
        check=entry.check,
        severity=severity,
        hosts=(host,),
        summary=entry.summary,
        hint=entry.hint or "",
        rank=UNSET if entry.rank is None else entry.rank,
    )
