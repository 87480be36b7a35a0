"""The report of a check: findings, open questions behind a green result, and its files: a hostfile, JUnit's XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from distconsole.checks.engine.catalogue import select_rules
from distconsole.checks.engine.results import warn
from distconsole.checks.engine.rule import Rule, Verdicts
from distconsole.checks.facts.evidence import (
    ALONE,
    BROKEN,
    CANCELLED,
    ELSEWHERE,
    LOST,
    NO_GROUP,
    UNREACHED,
    Outcome,
    by_key,
)
from distconsole.checks.facts.network import BandwidthFacts, ReachFacts, pair_reports
from distconsole.checks.gather.addresses import ALL_PAIRS_HOSTS, partners
from distconsole.checks.gather.context import BUDGET_OVER, CheckContext
from distconsole.checks.gather.timings import collectives_of, left_out_of, verified_of
from distconsole.checks.gather.transports import ways_taken
from distconsole.checks.rules.wording import MAX_LISTED
from distconsole.errors import ConfigError, Terminated
from distconsole.model.check_outcome import INCOMPLETE, UNKNOWN, passed_hosts, with_outcome
from distconsole.model.check_outcome import LOST as LOST_CHECK
from distconsole.model.cluster import Cluster
from distconsole.model.findings import Finding, Severity
from distconsole.model.names import count_text, join_some
from distconsole.model.reports import CheckOutcome, CheckReport, HostReport, NetworkReport
from distconsole.model.requests import Check, Level

NEVER_COVERED = (
    "traffic over RDMA",
    "GPUs under a load: heat, power, PCIe, wrong results",
    "data sets",
)
MAX_REASONS = 6
Cells = Mapping[str, Mapping[str, str]]
"""By host and check, as in the report."""


def make_report(
    context: CheckContext,
    verdicts: Verdicts,
    rules: Sequence[Rule],
    seconds: float,
    *,
    by: KeyboardInterrupt | None = None,
    sweeping: bool = False,
    stage_seconds: Mapping[str, float] | None = None,
) -> CheckReport:
    """Put everything that is known into the object that ``check --json`` prints.

    Args:
        rules: The checks that were asked for.
        by: What ended the check before its end.
        sweeping: Whether collectives for which there is no time are listed and not missed.
        stage_seconds: How long each stage took.
    """
    request, view = context.request, context.view()
    cells = {str(host): verdicts.cells.get(host, {}) for host in context.hosts}
    outcomes = {h: {c: str(each.outcome) for c, each in of.items()} for h, of in cells.items()}
    why = {h: {c: each.why for c, each in of.items() if each.why} for h, of in cells.items()}
    limited = request.budget_seconds is not None
    unmade = list(find_unmade(outcomes, why, verdicts.findings, request.only, limited))
    left_out = left_out_of(view)
    if left_out and limited and not sweeping:
        unmade.append(
            warn(
                f"collectives could not be measured ({len(left_out)}): the budget was over",
                seen=join_some(left_out),
                hint="give more time with --budget",
                check=INCOMPLETE,
            )
        )
    streams = (each for facts in view.of(BandwidthFacts).values() for each in facts.streams)
    rates = {(each.source, each.target): each.gbit_s for each in streams}
    edges = (edge for facts in view.of(ReachFacts).values() for edge in facts.edges)
    report = CheckReport(
        ok=False,
        outcome=CheckOutcome.INCOMPLETE,
        cancelled=by is not None,
        terminated=isinstance(by, Terminated),
        hosts={n: HostReport(reachable=h.reached, facts=h.raw) for n, h in context.hosts.items()},
        only=request.only,
        findings=(*verdicts.findings, *unmade),
        network=NetworkReport(pairs=tuple(pair_reports(edges, rates))),
        choices=verdicts.choices,
        collectives=collectives_of(view),
        ways=ways_taken(view),
        verified=verified_of(view),
        left_out=left_out,
        seconds=round(seconds, 3),
        stage_seconds={name: round(each, 3) for name, each in (stage_seconds or {}).items()},
        cells=outcomes,
        why=why,
        uncovered=tuple(_list_gaps(context, verdicts, rules)),
        target=context.launch.report() if context.launch is not None else None,
    )
    return with_outcome(report, strict=request.strict)


def _list_gaps(context: CheckContext, verdicts: Verdicts, rules: Sequence[Rule]) -> Iterator[str]:
    request = context.request
    bad = [each for each in verdicts.findings if each.severity in (Severity.FAIL, Severity.WARN)]
    untried = {each.check for each in bad if each.cure is not None and each.proof is None}
    # A check once for each of its hosts, as those that passed are counted.
    reasons: dict[str, list[str]] = {}
    for cells in verdicts.cells.values():
        for check, cell in cells.items():
            if cell.outcome not in (Outcome.PASS, Outcome.WARN, Outcome.FAIL):
                reasons.setdefault(cell.why or cell.outcome.value, []).append(check)
    told = [f"cures that were not tried ({', '.join(sorted(untried))})"]
    told = told if request.proves and untried else []
    told += [
        f"{why} ({checks[0] if len(set(checks)) == 1 else f'{len(checks)} checks'})"
        for why, checks in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    if request.only or request.skip:
        told.append(f"only {count_text(len(rules), 'check was', 'checks were')} asked for")
    yield from told[:MAX_REASONS]
    if (count := len(context.view((ReachFacts,)).hosts)) > ALL_PAIRS_HOSTS:
        some = len(partners(range(count), 0))
        yield f"connections between all pairs: each host tried {some} of {count - 1:,} others"
    yield from NEVER_COVERED
    if request.level is not Level.FULL:
        yield "long messages and bandwidth between pairs"


def find_unmade(
    cells: Cells,
    why: Cells,
    findings: Sequence[Finding],
    only: Sequence[str],
    budget: bool = False,
) -> Iterator[Finding]:
    """Yield a finding for each reason why checks that were asked for have no verdict.

    Nothing that could not be looked at may pass for healthy.
    """
    lost = {host for found in findings if found.check == LOST_CHECK for host in found.hosts}
    unknown = by_key(
        (why.get(host, {}).get(check, ""), (host, check))
        for host, outcomes in cells.items()
        for check, outcome in outcomes.items()
        if outcome in UNKNOWN and host not in lost
    )
    untold = [each for each in unknown.items() if not _explains(each[0], findings)]
    for reason, places in untold[:MAX_REASONS]:
        checks = sorted({check for _, check in places})
        limited = budget or reason == BUDGET_OVER
        yield warn(
            f"{count_text(len(checks), 'check')} could not be made: {reason}",
            dict.fromkeys(host for host, _ in places),
            seen=join_some(checks),
            hint="distconsole check --only net says which and what to do"
            if BROKEN in reason
            else "the same check once more, to its end"
            if reason == CANCELLED
            else "give more time with --budget, or leave them out with --skip"
            if limited
            else "leave them out with --skip",
            check=INCOMPLETE,
        )
    yield from _find_silence(cells, why, only)


def _find_silence(cells: Cells, why: Cells, only: Sequence[str]) -> Iterator[Finding]:
    """Yield the checks without anything to judge: all, those of a word of ``--only``, or those of a host."""
    every = set[str]().union(*cells.values())
    if not any(_judges_host(outcomes, every) for outcomes in cells.values()):
        named = f" of {', '.join(only[:MAX_LISTED])}" if only else ""
        yield _nothing(named, list(cells), _reasons(why, every))
        return
    for word in only:
        ids = {rule.id for rule in select_rules([word])}
        reasons = _reasons(why, ids)
        judged = any(_judges_host(outcomes, ids) for outcomes in cells.values())
        if not judged and ELSEWHERE not in reasons:
            yield _nothing(f" of {word}", list(cells), reasons)
    silent = (host for host, outcomes in cells.items() if not _judges_host(outcomes, every))
    alike = by_key((tuple(_reasons({host: why.get(host, {})}, every)), host) for host in silent)
    for told, hosts in alike.items():
        if ELSEWHERE not in told:
            yield _nothing("", hosts, told)


def _judges_host(outcomes: Mapping[str, str], ids: Set[str]) -> bool:
    return any(outcomes[check] != Outcome.SKIPPED for check in ids & outcomes.keys())


def _reasons(why: Cells, ids: Set[str]) -> list[str]:
    told = Counter(each[check] for each in why.values() for check in ids & each.keys())
    return [reason for reason, _ in told.most_common()]


def _nothing(of: str, hosts: Sequence[str], reasons: Sequence[str]) -> Finding:
    told = ", ".join(reasons[:MAX_REASONS]) or "the selection and the configuration leave none"
    return warn(
        f"no check{of} was made: {told}",
        hosts,
        hint="distconsole check --explain GROUP says what checks are about; --level full has all",
        check=INCOMPLETE,
    )


def _explains(why: str, findings: Sequence[Finding]) -> bool:
    by = {UNREACHED: ("ssh.",), ALONE: ("ssh.",), NO_GROUP: ("coll.", "horovod.", "mpi.")}
    telling = ("net.",) if BROKEN in why else (LOST_CHECK,) if LOST in why else by.get(why, ())
    return any(
        finding.check.startswith(telling) or (why and why in finding.seen) for finding in findings
    )


def write_files(request: Check, report: CheckReport, cluster: Cluster) -> None:
    """Write the files that ``request`` asks for; raises ConfigError if one cannot be written."""
    passed = passed_hosts(report, strict=request.strict)
    writers: dict[str | None, Callable[[], str]] = {
        request.emit_hostfile: lambda: hostfile(cluster, passed, request.nproc),
        request.junit: lambda: junit(report),
    }
    for name, write in writers.items():
        if name is None:
            continue
        try:
            Path(name).write_text(write(), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{name} cannot be written: {error.strerror}") from None


def hostfile(cluster: Cluster, passed: Collection[str], ranks_per_host: int | None) -> str:
    return "".join(
        f"{host.name} slots={ranks_per_host or host.slots or 1}\n"
        for host in cluster.hosts
        if host.name in passed
    )


def junit(report: CheckReport) -> str:
    """Return one test case for each host and check, and one for the outcome (what CI systems read).

    A check that could not be made is skipped there; that the whole is incomplete is an error.
    """
    outcomes = Counter(cell for cells in report.cells.values() for cell in cells.values())
    failed, incomplete = (
        report.outcome is each for each in (CheckOutcome.FAILED, CheckOutcome.INCOMPLETE)
    )
    suite = Element(
        "testsuite",
        name="distconsole check",
        tests=str(outcomes.total() + 1),
        failures=str(outcomes["fail"] + failed),
        errors=str(int(incomplete)),
        skipped=str(sum(outcomes[name] for name in ("skipped", "could_not_run", "timed_out"))),
        time=str(report.seconds),
    )
    for host, cells in report.cells.items():
        for check, outcome in cells.items():
            why = report.why.get(host, {}).get(check, "")
            case = SubElement(suite, "testcase", classname=host, name=check)
            if outcome == "fail":
                SubElement(case, "failure", message=why)
            elif outcome == "warn":
                SubElement(case, "system-out").text = why
            elif outcome != "pass":
                SubElement(case, "skipped", message=f"{outcome}: {why}")
    _add_outcome(suite, report)
    indent(suite)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(suite, "unicode")}\n'


def _add_outcome(suite: Element, report: CheckReport) -> None:
    """Add the test case of the whole check: it fails also by findings that belong to no host's check."""
    case = SubElement(suite, "testcase", classname="distconsole check", name="outcome")
    if report.outcome is not CheckOutcome.HEALTHY:
        tag = "failure" if report.outcome is CheckOutcome.FAILED else "error"
        bad = (Severity.WARN, Severity.FAIL)
        told = [found.summary for found in report.findings if found.severity in bad]
        cancelled = ["cancelled"] if report.cancelled else []
        SubElement(case, tag, message="; ".join([report.outcome.value, *cancelled, *told]))
