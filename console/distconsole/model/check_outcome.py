"""The outcome of a check as a whole, from its report alone; everything that shows an outcome reads it here."""

from __future__ import annotations

import msgspec

from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import CheckOutcome, CheckReport

INCOMPLETE = "check.incomplete"
"""The finding that checks were not made, and why."""

LOST = "ssh.lost"
"""The finding that a host stopped answering meanwhile."""

UNKNOWN = frozenset({"could_not_run", "timed_out"})
"""Cells of checks that have no verdict, though they were to have one."""


def with_outcome(report: CheckReport, *, strict: bool = False) -> CheckReport:
    """Return ``report`` with its ``outcome`` and ``ok``; with ``strict`` warnings fail."""
    outcome = _outcome_of(report, strict=strict)
    return msgspec.structs.replace(report, outcome=outcome, ok=outcome is CheckOutcome.HEALTHY)


def _outcome_of(report: CheckReport, *, strict: bool) -> CheckOutcome:
    told = {finding.check for finding in report.findings}
    reached = all(host.reachable for host in report.hosts.values())
    if report.cancelled or not reached or told & {INCOMPLETE, LOST}:
        return CheckOutcome.INCOMPLETE
    if any(_is_bad(finding, strict=strict) for finding in report.findings):
        return CheckOutcome.FAILED
    # After a failure some checks cannot be made because of it; else all must have been.
    some_unknown = any(UNKNOWN.intersection(cells.values()) for cells in report.cells.values())
    return CheckOutcome.INCOMPLETE if some_unknown else CheckOutcome.HEALTHY


def _is_bad(finding: Finding, *, strict: bool) -> bool:
    return finding.severity is Severity.FAIL or (strict and finding.severity is Severity.WARN)


def exit_code_of_check(report: CheckReport) -> int:
    """Return the exit code: 0 healthy, 130 Ctrl-C, 143 SIGTERM, 3 unreachable, else 1.

    3: no host was reachable, or a checked one that the launch needs was not.
    """
    if report.cancelled:
        return 143 if report.terminated else 130
    if report.outcome is CheckOutcome.HEALTHY:
        return 0
    lacking = report.target is not None and report.target.missing
    return 3 if lacking or not any(host.reachable for host in report.hosts.values()) else 1


def passed_hosts(report: CheckReport, *, strict: bool = False) -> list[str]:
    """Return the hosts that may be trained on: all was looked at and is well; ``strict``: no warnings."""
    if report.cancelled:
        return []
    found = [
        finding
        for finding in report.findings
        if _is_bad(finding, strict=strict) or finding.check in (INCOMPLETE, LOST)
    ]
    return [
        name
        for name, host in report.hosts.items()
        if host.reachable
        and not UNKNOWN.intersection(report.cells.get(name, {}).values())
        and set(report.cells.get(name, {}).values()) - {"skipped"}
        and not any(name in finding.hosts or not finding.hosts for finding in found)
    ]
