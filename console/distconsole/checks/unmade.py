"""Checks that were to be made and have no verdict: a finding for each reason that no other finding says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distconsole.checks.evidence import ALONE, BROKEN, CANCELLED, LOST, NO_GROUP, UNREACHED
from distconsole.checks.rule import warn
from distconsole.model.check_outcome import INCOMPLETE, UNKNOWN
from distconsole.model.check_outcome import LOST as LOST_CHECK
from distconsole.model.findings import Finding

MAX_REASONS = 6

Cells = Mapping[str, Mapping[str, str]]
"""By host and check, as in the report."""


def find_unmade(cells: Cells, why: Cells, findings: Sequence[Finding]) -> Iterator[Finding]:
    """Yield a finding for each reason; nothing that could not be looked at may pass for healthy."""
    reasons: dict[str, tuple[set[str], set[str]]] = {}
    lost = {host for found in findings if found.check == LOST_CHECK for host in found.hosts}
    for host, outcomes in cells.items():
        for check, outcome in outcomes.items():
            reason = why.get(host, {}).get(check, "")
            if outcome in UNKNOWN and host not in lost and not _explained(reason, findings):
                checks, hosts = reasons.setdefault(reason, (set(), set()))
                checks.add(check)
                hosts.add(host)
    for reason, (checks, hosts) in list(reasons.items())[:MAX_REASONS]:
        listed = ", ".join(sorted(checks)[:8])
        number = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
        yield warn(
            INCOMPLETE,
            f"{number} could not be made: {reason}",
            [host for host in cells if host in hosts],
            seen=listed + (f" and {len(checks) - 8} more" if len(checks) > 8 else ""),
            hint=_hint(reason),
        )


def nothing_made(hosts: Sequence[str], why: Cells) -> Finding:
    """Return the finding that no check at all was made."""
    told = list(dict.fromkeys(text for each in why.values() for text in each.values()))
    reasons = ", ".join(told[:MAX_REASONS]) or "--only and --skip leave none for these hosts"
    return warn(
        INCOMPLETE,
        f"no check was made: {reasons}",
        hosts,
        hint="distconsole check --explain GROUP lists the checks of a group; --level full has all",
    )


def cut_short(cases: Sequence[str]) -> Finding:
    """Return the finding that the budget left collectives out."""
    more = f" and {len(cases) - 8} more" if len(cases) > 8 else ""
    return warn(
        INCOMPLETE,
        f"{len(cases)} collectives could not be measured: the budget was over",
        seen=", ".join(cases[:8]) + more,
        hint="give more time with --budget",
    )


def _hint(reason: str) -> str:
    if BROKEN in reason:
        return "distconsole check --only net says which and what to do"
    if reason == CANCELLED:
        return "the same check once more, to its end"
    return "give more time with --budget, or leave them out with --skip"


def _explained(why: str, findings: Sequence[Finding]) -> bool:
    """Whether another finding says already why a cell is empty."""
    by = {UNREACHED: ("ssh.",), ALONE: ("ssh.",), NO_GROUP: ("coll.", "horovod.", "mpi.")}
    telling = ("net.",) if BROKEN in why else (LOST_CHECK,) if LOST in why else by.get(why, ())
    return any(
        finding.check.startswith(telling) or (why and why in finding.seen) for finding in findings
    )
