"""Applies checks to evidence: findings, and for every host and check a cell with its outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from distconsole.checks.engine.rule import HERE, HostView, NotApplicable, PredictedChoices, Rule
from distconsole.checks.facts.evidence import UNREACHED, HostEvidence, Missing, Outcome, View
from distconsole.checks.facts.node import SshFacts
from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.findings import Cure, Finding, Severity
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
    """Judge one check on ``hosts`` and add to ``verdicts``; returns what it found."""
    every = list(hosts)
    ready = replace(view, hosts=tuple(h for h in every if h.why_not(rule.needs) is None))
    left_out: list[NotApplicable] = []
    judged: list[HostEvidence] = []
    for host in ready.hosts:
        excused = rule.unless(HostView(host, ready))
        if excused is None:
            judged.append(host)
        else:
            left_out.append(msgspec.structs.replace(excused, hosts=(host.name,)))
    findings: list[Finding] = []
    for result in rule.judge(replace(view, hosts=tuple(judged))) if judged else ():
        if isinstance(result, Finding):
            findings.append(result)
        elif isinstance(result, NotApplicable):
            left_out.append(result)
        elif isinstance(result, PredictedChoices):
            verdicts.choices = result.choices
    unjudged: dict[str, Missing] = {}
    for each in left_out:
        for name in each.hosts:
            unjudged.setdefault(name, Missing(each.outcome, each.why))
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


def merge_alike(findings: Iterable[Finding]) -> list[Finding]:
    """Return ``findings``, those in one that have the same severity and summary.

    What was seen, and what to do, is told for each host where it differs.
    """
    alike: dict[tuple[str, str], list[Finding]] = {}
    for found in findings:
        alike.setdefault((found.severity.value, found.summary), []).append(found)
    return [_in_one(each) for each in alike.values()]


def _in_one(findings: Sequence[Finding]) -> Finding:
    hosts = list(dict.fromkeys(name for found in findings for name in found.hosts))
    names, first = name_hosts(hosts), findings[0]
    return msgspec.structs.replace(
        first,
        hosts=tuple(hosts),
        summary=first.summary.replace(HERE, names),
        seen=_each([(found.hosts, found.seen) for found in findings]),
        expected=first.expected.replace(HERE, names),
        hint=_merge_hints(findings, names),
        cure=_merge_cures([found.cure for found in findings if found.cure is not None]),
    )


def _merge_cures(cures: Sequence[Cure]) -> Cure | None:
    """Return what to change on each host; the rest is the same for all."""
    if not cures:
        return None
    hosts = {name: change for cure in cures for name, change in cure.hosts.items()}
    return msgspec.structs.replace(cures[0], hosts=hosts)


def _each(texts: Sequence[tuple[Sequence[str], str]]) -> str:
    """Return what hosts have in common once, and else each host's with its name."""
    if len({text for _, text in texts}) == 1:
        return texts[0][1]
    return list_some([f"{name_hosts(hosts)}: {text}" for hosts, text in texts if text])


def _merge_hints(findings: Sequence[Finding], names: str) -> str:
    """Return the hint once where it is the same for all hosts, else each with the hosts it is for."""
    if len({found.hint for found in findings}) == 1:
        return findings[0].hint.replace(HERE, names)
    hints = [found.hint.replace(HERE, name_hosts(found.hosts)) for found in findings]
    return list_some(list(dict.fromkeys(filter(None, hints))))
