"""Checks that were asked for and have no verdict: a finding for each reason that the others leave out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from distconsole.checks.engine.catalogue import CATALOGUE
from distconsole.checks.engine.rule import warn
from distconsole.checks.engine.select import select_rules
from distconsole.checks.facts.evidence import (
    ALONE,
    BROKEN,
    CANCELLED,
    ELSEWHERE,
    LOST,
    NO_GROUP,
    UNREACHED,
    Outcome,
)
from distconsole.model.check_outcome import INCOMPLETE, UNKNOWN
from distconsole.model.check_outcome import LOST as LOST_CHECK
from distconsole.model.findings import Finding

MAX_REASONS = 6
MAX_WORDS = 8
Cells = Mapping[str, Mapping[str, str]]
"""By host and check, as in the report."""


def find_unmade(
    cells: Cells, why: Cells, findings: Sequence[Finding], only: Sequence[str]
) -> Iterator[Finding]:
    """Yield a finding for each reason; nothing that could not be looked at may pass for healthy."""
    yield from _unknown(cells, why, findings)
    yield from _find_unjudged(cells, why, only)


def _unknown(cells: Cells, why: Cells, findings: Sequence[Finding]) -> Iterator[Finding]:
    reasons: dict[str, tuple[set[str], set[str]]] = {}
    lost = {host for found in findings if found.check == LOST_CHECK for host in found.hosts}
    for host, outcomes in cells.items():
        for check, outcome in outcomes.items():
            reason = why.get(host, {}).get(check, "")
            if outcome in UNKNOWN and host not in lost and not _explains(reason, findings):
                checks, hosts = reasons.setdefault(reason, (set(), set()))
                checks.add(check)
                hosts.add(host)
    for reason, (checks, hosts) in list(reasons.items())[:MAX_REASONS]:
        listed = ", ".join(sorted(checks)[:8])
        number = "1 check" if len(checks) == 1 else f"{len(checks)} checks"
        yield warn(
            f"{number} could not be made: {reason}",
            [host for host in cells if host in hosts],
            seen=listed + (f" and {len(checks) - 8} more" if len(checks) > 8 else ""),
            hint=_hint(reason),
            check=INCOMPLETE,
        )


def _find_unjudged(cells: Cells, why: Cells, only: Sequence[str]) -> Iterator[Finding]:
    """Yield what is not there to be judged: everything, a word of ``--only``, or all of it on a host."""
    every = set[str]().union(*cells.values())
    if not any(_judges_host(outcomes, every) for outcomes in cells.values()):
        named = f" of {', '.join(only[:MAX_WORDS])}" if only else ""
        yield _nothing(named, list(cells), _reasons(why, every))
        return
    for word in only:
        ids = {rule.id for rule in select_rules(CATALOGUE, [word])}
        reasons = _reasons(why, ids)
        judged = any(_judges_host(outcomes, ids) for outcomes in cells.values())
        if not judged and ELSEWHERE not in reasons:
            yield _nothing(f" of {word}", list(cells), reasons)
    alike: dict[tuple[str, ...], list[str]] = {}
    for host, outcomes in cells.items():
        if not _judges_host(outcomes, every):
            reasons = _reasons({host: why.get(host, {})}, every)
            alike.setdefault(tuple(reasons), []).append(host)
    for told, hosts in alike.items():
        if ELSEWHERE not in told:
            yield _nothing("", hosts, told)


def _judges_host(outcomes: Mapping[str, str], ids: Set[str]) -> bool:
    """Whether a check of ``ids`` says something of a host, were it that it could not be made."""
    return any(outcomes[check] != Outcome.SKIPPED for check in ids & outcomes.keys())


def _reasons(why: Cells, ids: Set[str]) -> list[str]:
    """Return why checks have nothing to say, the most frequent reason first."""
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


def cut_short(cases: Sequence[str]) -> Finding:
    """Return the finding that the budget left collectives out."""
    more = f" and {len(cases) - 8} more" if len(cases) > 8 else ""
    return warn(
        f"{len(cases)} collectives could not be measured: the budget was over",
        seen=", ".join(cases[:8]) + more,
        hint="give more time with --budget",
        check=INCOMPLETE,
    )


def _hint(reason: str) -> str:
    if BROKEN in reason:
        return "distconsole check --only net says which and what to do"
    if reason == CANCELLED:
        return "the same check once more, to its end"
    return "give more time with --budget, or leave them out with --skip"


def _explains(why: str, findings: Sequence[Finding]) -> bool:
    """Whether another finding says already why a cell is empty."""
    by = {UNREACHED: ("ssh.",), ALONE: ("ssh.",), NO_GROUP: ("coll.", "horovod.", "mpi.")}
    telling = ("net.",) if BROKEN in why else (LOST_CHECK,) if LOST in why else by.get(why, ())
    return any(
        finding.check.startswith(telling) or (why and why in finding.seen) for finding in findings
    )
