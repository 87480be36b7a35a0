"""Applies checks to evidence: findings, and for every host and check a cell with its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import msgspec

from distconsole.checks.engine.rule import Foreseen, Rule, Unjudged
from distconsole.checks.engine.together import merge_alike
from distconsole.checks.facts.evidence import UNREACHED, HostEvidence, Missing, Outcome, View
from distconsole.checks.facts.node import SshFacts
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import ChoiceReport


@dataclass(slots=True)
class Verdicts:
    """What was concluded: findings in order, and by host and check the outcome and its reason.

    Attributes:
        choices: What the engines will choose, as far as that was looked at.
    """

    findings: list[Finding] = field(default_factory=list)
    choices: tuple[ChoiceReport, ...] = ()
    cells: dict[str, dict[str, Missing]] = field(default_factory=dict)

    def cell(self, host: str, check: str, outcome: Outcome, why: str = "") -> None:
        """Set one cell."""
        self.cells.setdefault(host, {})[check] = Missing(outcome, why)


def judge(
    rule: Rule, hosts: Iterable[HostEvidence], view: View, verdicts: Verdicts
) -> list[Finding]:
    """Judge one check and add to ``verdicts``; returns what it found.

    Args:
        rule: The check.
        hosts: All hosts.
        view: The same, of which those are judged that have what the check needs.
    """
    every = list(hosts)
    ready = tuple(host for host in every if host.why_not(rule.needs) is None)
    findings: list[Finding] = []
    unjudged: dict[str, Missing] = {}
    if ready:
        for said in rule.judge(replace(view, hosts=ready)):
            match said:
                case Unjudged():
                    for name in said.hosts:
                        unjudged.setdefault(name, Missing(said.outcome, said.why))
                case Foreseen():
                    verdicts.choices = said.choices
                case Finding():
                    findings.append(said)
                case _:
                    assert_never(said)
    findings = [_in_order(each, rule.id, view.everyone) for each in merge_alike(findings)]
    for host in every:
        outcome = _outcome(rule, host, findings, unjudged)
        verdicts.cell(host.name, rule.id, outcome.outcome, outcome.why)
    verdicts.findings += findings
    return findings


def _in_order(finding: Finding, check: str, everyone: Sequence[str]) -> Finding:
    hosts = tuple(name for name in everyone if name in finding.hosts)
    return msgspec.structs.replace(finding, check=finding.check or check, hosts=hosts)


def _outcome(
    rule: Rule, host: HostEvidence, findings: list[Finding], unjudged: dict[str, Missing]
) -> Missing:
    mine = [found for found in findings if host.name in found.hosts or not found.hosts]
    worst = max((found.severity for found in mine), key=lambda each: each.order, default=None)
    if worst in (Severity.FAIL, Severity.WARN):
        why = next(found.summary for found in mine if found.severity is worst)
        return Missing(Outcome.FAIL if worst is Severity.FAIL else Outcome.WARN, why)
    missing = host.why_not(rule.needs)
    if missing is not None:
        if SshFacts in host.known and not host.reached and rule.needs != (SshFacts,):
            return Missing(Outcome.COULD_NOT_RUN, UNREACHED)
        return missing
    return unjudged.get(host.name, Missing(Outcome.PASS, ""))
