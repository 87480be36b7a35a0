"""A check as a value: its needs, its judge, its verdict on hosts. Judging is pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TypeAlias, TypeVar

import msgspec

from distconsole.checks.engine.results import HERE, NotApplicable, RuleResults
from distconsole.checks.facts.evidence import (
    ALONE,
    UNREACHED,
    HostEvidence,
    Missing,
    Outcome,
    View,
    by_key,
)
from distconsole.checks.facts.node import Facts, SshFacts
from distconsole.checks.rules.wording import list_some, name_hosts
from distconsole.model.expectation import Expectation
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import ChoiceReport
from distconsole.model.requests import Level

F = TypeVar("F", bound=Facts)


@dataclass(frozen=True, slots=True)
class HostView:
    """Facts for a check that judges each host by itself; its text is the host's name."""

    evidence: HostEvidence
    view: View

    def __str__(self) -> str:
        return self.evidence.name

    def of(self, kind: type[F]) -> F:
        facts = self.find(kind)
        assert facts is not None, kind
        return facts

    def find(self, kind: type[F]) -> F | None:
        return self.evidence.find(kind)

    @property
    def expected(self) -> Expectation:
        return self.view.expectation(str(self))


Judge: TypeAlias = Callable[[View], RuleResults]
HostJudge: TypeAlias = Callable[[HostView], RuleResults]
Unless: TypeAlias = Callable[[HostView], NotApplicable | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One check of the catalogue.

    Attributes:
        id: Stable and dotted; ``--only`` and ``--skip`` take it and its prefixes.
        group: The group that ``--only`` and ``--skip`` know it by.
        level: The first level at which it runs.
        needs: The groups of facts; a host that lacks one is not judged, and the reason is kept.
        catches: What goes wrong on clusters that fail it, for ``--explain`` and the docs.
        hint: What to do, in general; findings carry the exact words.
        after: Groups that it looks at where they are there, and waits for where they are to come.
        unless: Says of a host why there is nothing to judge; such a host is not shown to ``judge``.
    """

    id: str
    group: str
    level: Level
    needs: tuple[type[Facts], ...]
    catches: str
    hint: str
    judge: Judge
    after: tuple[type[Facts], ...] = ()
    unless: Unless = lambda _: None


def hint(text: str) -> Callable[[Rule], Rule]:
    return lambda rule: replace(rule, hint=text)


def rule(
    check: str,
    group: str,
    level: Level,
    *needs: type[Facts],
    after: tuple[type[Facts], ...] = (),
    unless: Unless = lambda _: None,
) -> Callable[[Judge], Rule]:
    """Make a rule of a judge, whose docstring's first paragraph describes the fault."""

    def decorate(judge: Judge) -> Rule:
        catches = (judge.__doc__ or "").partition("\n\n")[0]
        return Rule(check, group, level, needs, catches, "", judge, after, unless)

    return decorate


def host_rule(
    check: str,
    group: str,
    level: Level,
    *needs: type[Facts],
    after: tuple[type[Facts], ...] = (),
    unless: Unless = lambda _: None,
) -> Callable[[HostJudge], Rule]:
    """Make a rule of a judge of one host; results without hosts are about that one."""
    make = rule(check, group, level, *needs, after=after, unless=unless)
    return lambda judge: make(judge_each(judge))


def judge_each(judge_host: HostJudge) -> Judge:
    @wraps(judge_host)
    def judge(view: View) -> RuleResults:
        for host in view.hosts:
            for found in judge_host(HostView(host, view)):
                yield msgspec.structs.replace(found, hosts=found.hosts or (host.name,))

    return judge


def only_where(holds: Callable[[HostView], object], why: str) -> Unless:
    return lambda host: None if holds(host) else NotApplicable(why)


def unless_alone(host: HostView) -> NotApplicable | None:
    """Leave out a host that has no peer: there is none, or none could be reached."""
    if len(host.view.everyone) < 2:
        return NotApplicable("one host")
    if len(host.view.hosts) < 2:
        return NotApplicable(ALONE, outcome=Outcome.COULD_NOT_RUN)
    return None


PASSED = Missing(Outcome.PASS, "")
UNJUDGED = Missing(Outcome.COULD_NOT_RUN, UNREACHED)


@dataclass(slots=True)
class Verdicts:
    """Conclusions: findings in order, outcomes and reasons by host and check, engines' ``choices``."""

    findings: list[Finding] = field(default_factory=list)
    choices: tuple[ChoiceReport, ...] = ()
    cells: dict[str, dict[str, Missing]] = field(default_factory=dict)

    def add_cell(self, host: str, check: str, cell: Missing) -> None:
        self.cells.setdefault(host, {})[check] = cell


def judge(
    rule: Rule, hosts: Iterable[HostEvidence], view: View, verdicts: Verdicts
) -> list[Finding]:
    """Judge one check on ``hosts`` and add to ``verdicts``; returns its findings."""
    every = list(hosts)
    lacking = {h.name: why for h in every if (why := h.why_not(rule.needs)) is not None}
    ready = view.on([host for host in every if host.name not in lacking])
    left_out: list[NotApplicable] = []
    judged: list[HostEvidence] = []
    for host in ready.hosts:
        excused = rule.unless(HostView(host, ready))
        if excused is None:
            judged.append(host)
        else:
            left_out.append(msgspec.structs.replace(excused, hosts=(host.name,)))
    findings: list[Finding] = []
    for result in rule.judge(ready.on(judged)) if judged else ():
        if isinstance(result, Finding):
            findings.append(result)
        elif isinstance(result, NotApplicable):
            left_out.append(result)
        else:
            verdicts.choices = result.choices
    unjudged = {
        name: Missing(each.outcome, each.why) for each in reversed(left_out) for name in each.hosts
    }
    # Those of one severity and summary are one, with what differs by host.
    alike = by_key(((found.severity, found.summary), found) for found in findings)
    findings = [_in_one(each, rule.id, view.everyone) for each in alike.values()]
    worst = _worst_by_host(findings, view.everyone)
    for host in every:
        name = host.name
        cell = worst.get(name) or unjudged.get(name, PASSED)
        if name in lacking and name not in worst:
            unreached = SshFacts in host.known and not host.reached and rule.needs != (SshFacts,)
            cell = UNJUDGED if unreached else lacking[name]
        verdicts.add_cell(name, rule.id, cell)
    verdicts.findings += findings
    return findings


def _worst_by_host(findings: Iterable[Finding], everyone: Sequence[str]) -> dict[str, Missing]:
    """Return the cells of the hosts that something is wrong with: by the first of the worst findings."""
    outcomes = {Severity.FAIL: Outcome.FAIL, Severity.WARN: Outcome.WARN}
    cells: dict[str, Missing] = {}
    for finding in sorted(findings, key=lambda each: -each.severity.order):
        if finding.severity in outcomes:
            cell = Missing(outcomes[finding.severity], finding.summary)
            for name in finding.hosts or everyone:
                cells.setdefault(name, cell)
    return cells


def _in_one(findings: Sequence[Finding], check: str, everyone: Sequence[str]) -> Finding:
    hosts = tuple(dict.fromkeys(name for found in findings for name in found.hosts))
    names, first, found_on = name_hosts(hosts), findings[0], set(hosts)
    seen, hint = first.seen, first.hint.replace(HERE, names)
    if len({found.seen for found in findings}) > 1:
        seen = list_some([f"{name_hosts(f.hosts)}: {f.seen}" for f in findings if f.seen])
    if len({found.hint for found in findings}) > 1:
        hints = [found.hint.replace(HERE, name_hosts(found.hosts)) for found in findings]
        hint = list_some(list(dict.fromkeys(filter(None, hints))))
    cures = [found.cure for found in findings if found.cure is not None]
    changes = {name: change for cure in cures for name, change in cure.hosts.items()}
    return msgspec.structs.replace(
        first,
        check=first.check or check,
        hosts=tuple(name for name in everyone if name in found_on),
        summary=first.summary.replace(HERE, names),
        seen=seen,
        expected=first.expected.replace(HERE, names),
        hint=hint,
        cure=msgspec.structs.replace(cures[0], hosts=changes) if cures else None,
    )
