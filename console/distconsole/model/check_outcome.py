"""How a check came out as a whole, from its report alone: all that tells of a check reads it here."""

from __future__ import annotations

import msgspec

from distconsole.model.findings import Severity
from distconsole.model.reports import CheckOutcome, CheckReport

INCOMPLETE = "check.incomplete"
"""The finding that checks were not made, and why."""

LOST = "ssh.lost"
"""The finding that a host stopped answering meanwhile."""

UNKNOWN = frozenset({"could_not_run", "timed_out"})
"""Cells of checks that have no verdict, though they were to have one."""


def with_outcome(report: CheckReport, *, strict: bool = False) -> CheckReport:
    """Return ``report`` with ``outcome`` and ``ok`` as the rest of it says.

    Args:
        strict: Whether warnings fail.
    """
    outcome = _outcome_of(report, strict=strict)
    return msgspec.structs.replace(report, outcome=outcome, ok=outcome is CheckOutcome.HEALTHY)


def _outcome_of(report: CheckReport, *, strict: bool) -> CheckOutcome:
    told = {finding.check for finding in report.findings}
    reached = all(host.reachable for host in report.hosts.values())
    if report.cancelled or not reached or told & {INCOMPLETE, LOST}:
        return CheckOutcome.INCOMPLETE
    bad = {Severity.FAIL, Severity.WARN} if strict else {Severity.FAIL}
    if any(finding.severity in bad for finding in report.findings):
        return CheckOutcome.FAILED
    # After a failure some checks cannot be made because of it; else all must have been.
    some_unknown = any(UNKNOWN.intersection(cells.values()) for cells in report.cells.values())
    return CheckOutcome.INCOMPLETE if some_unknown else CheckOutcome.HEALTHY


def exit_code_of_check(report: CheckReport) -> int:
    """Return the exit code: 0 healthy, 3 no host was reached, 130 cancelled, else 1."""
    if report.cancelled:
        return 130
    if report.outcome is CheckOutcome.HEALTHY:
        return 0
    return 1 if any(host.reachable for host in report.hosts.values()) else 3
