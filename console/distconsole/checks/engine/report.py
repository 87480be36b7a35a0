"""The report of a check: facts, findings, cells, pairs, collectives, and what green leaves open."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.checks.engine.judge import Verdicts
from distconsole.checks.engine.rule import Rule
from distconsole.checks.engine.unmade import cut_short, find_unmade
from distconsole.checks.facts.evidence import Outcome
from distconsole.checks.facts.network import BandwidthFacts, ReachFacts, pair_reports
from distconsole.checks.gather.nodes import Gathering
from distconsole.checks.gather.timings import collectives_of, left_out_of, verified_of
from distconsole.model.check_outcome import with_outcome
from distconsole.model.findings import Severity
from distconsole.model.reports import (
    CheckOutcome,
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
MAX_REASONS = 6


def make_report(
    gathering: Gathering,
    verdicts: Verdicts,
    rules: Sequence[Rule],
    seconds: float,
    *,
    cancelled: bool = False,
    terminated: bool = False,
    sweeping: bool = False,
) -> CheckReport:
    """Put everything that is known into the object that ``check --json`` prints.

    Args:
        rules: The checks that were asked for.
        cancelled: Whether the check was ended before its end, and ``terminated`` by SIGTERM.
        sweeping: Whether collectives for which there is no time are named and not missed.
    """
    request = gathering.request
    cells = {
        str(host): {
            name: cell.outcome.value for name, cell in verdicts.cells.get(host, {}).items()
        }
        for host in gathering.hosts
    }
    why = {
        host: {check: cell.why for check, cell in cells.items() if cell.why}
        for host, cells in verdicts.cells.items()
    }
    unmade = list(find_unmade(cells, why, verdicts.findings, request.only))
    left_out = left_out_of(gathering.view())
    if left_out and request.budget_seconds is not None and not sweeping:
        unmade.append(cut_short(left_out))
    report = CheckReport(
        ok=False,
        outcome=CheckOutcome.INCOMPLETE,
        cancelled=cancelled,
        terminated=terminated,
        hosts={
            name: HostReport(reachable=host.reached, facts=host.raw)
            for name, host in gathering.hosts.items()
        },
        only=request.only,
        findings=(*verdicts.findings, *unmade),
        network=NetworkReport(pairs=_pairs(gathering)),
        choices=verdicts.choices,
        collectives=collectives_of(gathering.view()),
        verified=verified_of(gathering.view()),
        left_out=left_out,
        seconds=round(seconds, 3),
        cells=cells,
        why=why,
        uncovered=_say_uncovered(request, verdicts, rules),
        target=gathering.launch.report() if gathering.launch is not None else None,
    )
    return with_outcome(report, strict=request.strict)


def _pairs(gathering: Gathering) -> tuple[PairReport, ...]:
    view = gathering.view()
    streams = {
        (stream.source, stream.target): stream.gbit_s
        for found in view.of(BandwidthFacts).values()
        for stream in found.streams
    }
    edges = (edge for found in view.of(ReachFacts).values() for edge in found.edges)
    return tuple(pair_reports(edges, streams))


def _say_uncovered(request: Check, verdicts: Verdicts, rules: Sequence[Rule]) -> tuple[str, ...]:
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
