"""The report of a check: facts, findings, cells, pairs, collectives, and what green does not cover."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distconsole.checks.evidence import ALONE, BROKEN, LOST, NO_GROUP, UNREACHED, Outcome
from distconsole.checks.gather import Gathering
from distconsole.checks.judge import Verdicts
from distconsole.checks.net_facts import BandwidthFacts, ReachFacts
from distconsole.checks.pairs import pair_reports
from distconsole.checks.rule import Rule, warn
from distconsole.checks.timings import collectives_of, left_out_of, verified_of
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import (
    CheckReport,
    HostReport,
    NetworkReport,
    PairReport,
)
from distconsole.model.requests import Check, Level

NEVER_COVERED = (
    "traffic over RDMA",
    "GPUs under a load of minutes: heat, power, wrong results",
    "data sets",
)
INCOMPLETE = "check.incomplete"
LOST_CHECK = "ssh.lost"
MAX_REASONS = 6


def make_report(
    gathering: Gathering, verdicts: Verdicts, rules: Sequence[Rule], seconds: float
) -> CheckReport:
    """Put everything that is known into the object that ``check --json`` prints."""
    request = gathering.request
    findings = (*verdicts.findings, *_incomplete(verdicts))
    bad = {Severity.FAIL, Severity.WARN} if request.strict else {Severity.FAIL}
    return CheckReport(
        ok=not any(finding.severity in bad for finding in findings),
        hosts={
            name: HostReport(reachable=host.reached, facts=host.raw)
            for name, host in gathering.hosts.items()
        },
        findings=findings,
        network=NetworkReport(pairs=_pairs(gathering)),
        choices=verdicts.choices,
        collectives=collectives_of(gathering.view()),
        verified=verified_of(gathering.view()),
        left_out=left_out_of(gathering.view()),
        seconds=round(seconds, 3),
        cells={
            host: {check: cell.outcome.value for check, cell in cells.items()}
            for host, cells in verdicts.cells.items()
        },
        why={
            host: {check: cell.why for check, cell in cells.items() if cell.why}
            for host, cells in verdicts.cells.items()
        },
        uncovered=_uncovered(request, verdicts, rules),
        target=gathering.launch.report() if gathering.launch is not None else None,
    )


def _incomplete(verdicts: Verdicts) -> Iterable[Finding]:
    """Nothing that could not be looked at may pass for healthy."""
    reasons: dict[str, tuple[set[str], set[str]]] = {}
    lost = {
        host for found in verdicts.findings if found.check == LOST_CHECK for host in found.hosts
    }
    for host, cells in verdicts.cells.items():
        for check, cell in cells.items():
            unknown = cell.outcome in (Outcome.COULD_NOT_RUN, Outcome.TIMED_OUT)
            if unknown and host not in lost and not _explained(cell.why, verdicts.findings):
                checks, hosts = reasons.setdefault(cell.why, (set(), set()))
                checks.add(check)
                hosts.add(host)
    for why, (checks, hosts) in list(reasons.items())[:MAX_REASONS]:
        listed = ", ".join(sorted(checks)[:8])
        yield warn(
            INCOMPLETE,
            f"{len(checks)} checks could not be made: {why}",
            [host for host in verdicts.cells if host in hosts],
            seen=listed + (f" and {len(checks) - 8} more" if len(checks) > 8 else ""),
            hint="distconsole check --only net says which and what to do"
            if BROKEN in why
            else "give more time with --budget, or leave them out with --skip",
        )


def _explained(why: str, findings: Sequence[Finding]) -> bool:
    """Whether another finding says already why a cell is empty."""
    by = {UNREACHED: ("ssh.",), ALONE: ("ssh.",), NO_GROUP: ("coll.", "horovod.", "mpi.")}
    telling = ("net.",) if BROKEN in why else (LOST_CHECK,) if LOST in why else by.get(why, ())
    return any(
        finding.check.startswith(telling) or (why and why in finding.seen) for finding in findings
    )


def _pairs(gathering: Gathering) -> tuple[PairReport, ...]:
    view = gathering.view()
    streams = {
        (stream.source, stream.target): stream.gbit_s
        for found in view.of(BandwidthFacts).values()
        for stream in found.streams
    }
    edges = (edge for found in view.of(ReachFacts).values() for edge in found.edges)
    return tuple(pair_reports(edges, streams))


def _uncovered(request: Check, verdicts: Verdicts, rules: Sequence[Rule]) -> tuple[str, ...]:
    reasons: dict[str, set[str]] = {}
    for cells in verdicts.cells.values():
        for check, cell in cells.items():
            if cell.outcome not in (Outcome.PASS, Outcome.WARN, Outcome.FAIL):
                reasons.setdefault(cell.why or cell.outcome.value, set()).add(check)
    told = [
        f"{why} ({next(iter(checks)) if len(checks) == 1 else f'{len(checks)} checks'})"
        for why, checks in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    if request.only or request.skip:
        some = "1 check was" if len(rules) == 1 else f"{len(rules)} checks were"
        told.append(f"only {some} asked for")
    untried = {
        found.check
        for found in verdicts.findings
        if found.cure is not None
        and found.proof is None
        and found.severity in (Severity.FAIL, Severity.WARN)
    }
    if request.proves and untried:
        told.insert(0, f"cures that were not tried ({', '.join(sorted(untried))})")
    never = (
        NEVER_COVERED
        if request.level is Level.FULL
        else (*NEVER_COVERED, "long messages and bandwidth between pairs")
    )
    return (*told[:MAX_REASONS], *never)


def passed_hosts(report: CheckReport) -> list[str]:
    """Return the hosts that passed: reached, and named by no failure."""
    failed = {
        host
        for finding in report.findings
        if finding.severity is Severity.FAIL
        for host in finding.hosts
    }
    return [name for name, host in report.hosts.items() if host.reachable and name not in failed]
