"""``bench collectives``: a check that runs one engine's collective job, as a sweep, and its figures.

The hosts are looked at before, because a job on hosts that cannot run it may hang.
"""

from __future__ import annotations

from collections.abc import Iterator

from distconsole.checks.engine.run import run_check
from distconsole.checks.gather.collective import Sweep
from distconsole.model.check_outcome import exit_code_of_check
from distconsole.model.events import CheckEnded, CheckProgress, CollectivesMeasured, Event
from distconsole.model.findings import Severity
from distconsole.model.names import is_whole
from distconsole.model.reports import CheckReport
from distconsole.model.requests import BenchCollectives, Check, LauncherName, Level
from distconsole.model.run_events import EndState
from distconsole.operations.sessions import SessionSource

CHECKS = {
    LauncherName.TORCH: ("coll.",),
    LauncherName.HOROVOD: (
        *("horovod.init", "horovod.rank_size", "horovod.correct", "horovod.ending"),
    ),
    LauncherName.MPI: ("mpi.launch", "mpi.rank_size", "mpi.correct", "mpi.ending"),
}
"""The checks of each engine's job."""


def bench_collectives(request: BenchCollectives, sessions: SessionSource) -> Iterator[Event]:
    """Measure; the last event is ``CollectivesMeasured``."""
    usual = Sweep()
    ops = tuple(op.value for op in request.ops) or usual.ops
    sweep = Sweep(ops=ops, sizes=request.sizes or usual.sizes)
    asked = Check(
        where=request.where,
        level=Level.FULL,
        only=CHECKS[request.launcher],
        nproc=int(request.nproc) if request.nproc and is_whole(request.nproc) else None,
        budget_seconds=request.budget_seconds,
    )
    with sessions(request.where) as session:
        for event in run_check(asked, session, sweep=sweep):
            if isinstance(event, CheckProgress):
                yield event
            elif isinstance(event, CheckEnded):
                yield measure_report(request.launcher, event.report)


def measure_report(launcher: LauncherName, report: CheckReport) -> CollectivesMeasured:
    hosts = tuple(report.hosts)
    told = tuple(f for f in report.findings if f.severity in (Severity.WARN, Severity.FAIL))
    well = report.ok and bool(report.collectives)
    some = next(iter(report.collectives), None)
    why = sorted({why for cells in report.why.values() for why in cells.values()})
    return CollectivesMeasured(
        hosts=hosts,
        launcher=launcher.value,
        backend=some.backend if some is not None else "",
        size=some.size if some is not None else 0,
        collectives=report.collectives,
        verified=report.verified,
        left_out=report.left_out if some is not None else tuple(why),
        findings=told,
        seconds=report.seconds,
        state=EndState.SUCCEEDED if well else EndState.FAILED,
        exit_code=0 if well else exit_code_of_check(report) or 1,
    )
