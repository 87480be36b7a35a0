"""The outcome of a check over every combination of what can be wrong with one."""

from itertools import product

import msgspec
import pytest

from distconsole.model.check_outcome import exit_code_of_check, passed_hosts, with_outcome
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import CheckOutcome, CheckReport, HostReport, TargetReport
from fakes.blank import blank

REACHED = (2, 1, 0)
TOLD = ("ssh.lost", "check.incomplete", "os.user")
CELLS = ("pass", "skipped", "could_not_run", "timed_out")


def report(
    reached: int = 2,
    findings: tuple[tuple[str, Severity], ...] = (),
    cell: str = "pass",
    *,
    cancelled: bool = False,
) -> CheckReport:
    return blank(
        CheckReport,
        ok=True,
        outcome=CheckOutcome.HEALTHY,
        cancelled=cancelled,
        hosts={name: HostReport(reachable=at < reached, facts={}) for at, name in enumerate("ab")},
        findings=tuple(
            Finding(check=check, severity=severity, summary="") for check, severity in findings
        ),
        seconds=1.0,
        cells={"a": {"os.user": "pass"}, "b": {"os.user": cell}},
    )


@pytest.mark.parametrize("reached", REACHED)
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("cancelled", [False, True])
def test_only_what_was_looked_at_and_found_well_is_healthy(
    reached: int, cell: str, cancelled: bool
) -> None:
    for check, severity, strict in product((*TOLD, ""), Severity, (False, True)):
        findings = ((check, severity),) if check else ()
        found = with_outcome(report(reached, findings, cell, cancelled=cancelled), strict=strict)
        unmade = reached < 2 or cancelled or check in ("ssh.lost", "check.incomplete")
        bad = check and (severity is Severity.FAIL or (strict and severity is Severity.WARN))
        unknown = cell in ("could_not_run", "timed_out")
        expected = (
            "incomplete" if unmade else "failed" if bad else "incomplete" if unknown else "healthy"
        )
        assert (found.outcome, found.ok) == (expected, expected == "healthy"), found
        code = 130 if cancelled else 0 if found.ok else 3 if reached == 0 else 1
        assert exit_code_of_check(found) == code


@pytest.mark.parametrize("cell", CELLS)
def test_a_host_passes_by_the_rule_of_the_exit_code(cell: str) -> None:
    for check, severity, strict in product(TOLD, Severity, (False, True)):
        found = report(2, ((check, severity),), cell)
        bad = severity is Severity.FAIL or (strict and severity is Severity.WARN)
        of_all = not bad and check == "os.user"
        well = ["a", "b"] if cell == "pass" else ["a"]
        assert passed_hosts(found, strict=strict) == (well if of_all else []), found


def test_a_finding_fails_the_hosts_that_it_names() -> None:
    found = report(2, (("os.user", Severity.FAIL),))
    named = (msgspec.structs.replace(found.findings[0], hosts=("b",)),)
    assert passed_hosts(msgspec.structs.replace(found, findings=named)) == ["a"]
    assert passed_hosts(report(1)) == ["a"]
    assert passed_hosts(report(cancelled=True)) == []


@pytest.mark.parametrize(
    ("reached", "missing", "terminated", "code"),
    [(1, (), False, 1), (1, ("b",), False, 3), (0, (), False, 3), (1, ("b",), True, 143)],
)
def test_a_host_that_the_launch_needs_and_is_not_reached_has_a_code_of_its_own(
    reached: int, missing: tuple[str, ...], terminated: bool, code: int
) -> None:
    found = msgspec.structs.replace(
        report(reached, cancelled=terminated),
        terminated=terminated,
        target=TargetReport(command=(), script="train.py", missing=missing),
    )
    assert exit_code_of_check(with_outcome(found)) == code
