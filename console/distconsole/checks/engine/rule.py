"""A check as a value: what it needs to know and how it judges. Judging is pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from distconsole.checks.facts.evidence import ALONE, HostEvidence, Outcome, View
from distconsole.checks.facts.node import Facts
from distconsole.checks.rules.wording import dissent
from distconsole.model.expectation import Expectation
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.model.reports import ChoiceReport
from distconsole.model.requests import Level

F = TypeVar("F", bound=Facts)
J = TypeVar("J")
J_co = TypeVar("J_co", covariant=True)

HERE = "\0"
"""In a finding's words it stands for the hosts: findings that are alike on several hosts become one."""


class NotApplicable(msgspec.Struct, frozen=True):
    """On these hosts, if there are any, the check has nothing to say, and why."""

    why: str
    hosts: tuple[str, ...] = ()
    outcome: Outcome = Outcome.SKIPPED


class PredictedChoices(msgspec.Struct, frozen=True):
    """What the engines will choose, which the report shows whether it is found fault with or not."""

    choices: tuple[ChoiceReport, ...]
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostView:
    """What a check that judges each host by itself may look at; its text is the host's name."""

    evidence: HostEvidence
    view: View

    def __str__(self) -> str:
        return self.evidence.name

    def of(self, kind: type[F]) -> F:
        """Return facts that the check needs."""
        facts = self.find(kind)
        assert facts is not None, kind
        return facts

    def find(self, kind: type[F]) -> F | None:
        """Return facts that may be missing."""
        facts = self.evidence.known.get(kind)
        return facts if isinstance(facts, kind) else None

    @property
    def expected(self) -> Expectation:
        """What the configuration expects of it."""
        return self.view.expectation(str(self))


RuleResult: TypeAlias = Finding | NotApplicable | PredictedChoices
RuleResults: TypeAlias = Iterator[RuleResult]
Judge: TypeAlias = Callable[[View], RuleResults]
HostJudge: TypeAlias = Callable[[HostView], RuleResults]
Unless: TypeAlias = Callable[[HostView], NotApplicable | None]
Grade: TypeAlias = Callable[..., Finding]


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
        judge: The verdict.
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


class Hinted(NamedTuple, Generic[J_co]):
    """A judge with what to do in general where it finds something."""

    judge: J_co
    hint: str


def hint(text: str) -> Callable[[J], Hinted[J]]:
    """Say of a judge what to do in general where it finds something."""
    return lambda judge: Hinted(judge, text)


def rule(
    check: str,
    group: str,
    level: Level,
    *needs: type[Facts],
    after: tuple[type[Facts], ...] = (),
    unless: Unless = lambda _: None,
) -> Callable[[Hinted[Judge]], Rule]:
    """Make a rule of a judge; the first paragraph of its docstring is what the rule catches."""

    def decorate(hinted: Hinted[Judge]) -> Rule:
        catches = (hinted.judge.__doc__ or "").partition("\n\n")[0]
        return Rule(check, group, level, needs, catches, hinted.hint, hinted.judge, after, unless)

    return decorate


def host_rule(
    check: str,
    group: str,
    level: Level,
    *needs: type[Facts],
    after: tuple[type[Facts], ...] = (),
    unless: Unless = lambda _: None,
) -> Callable[[Hinted[HostJudge]], Rule]:
    """Make a rule of a judge of one host; what it yields without hosts is about that one."""
    make = rule(check, group, level, *needs, after=after, unless=unless)
    return lambda hinted: make(Hinted(judge_each(hinted.judge), hinted.hint))


def judge_each(judge_host: HostJudge) -> Judge:
    """Return the judge of all hosts that judges each of them by ``judge_host``."""

    @wraps(judge_host)
    def judge(view: View) -> RuleResults:
        for host in view.hosts:
            for found in judge_host(HostView(host, view)):
                yield msgspec.structs.replace(found, hosts=found.hosts or (host.name,))

    return judge


def unless_alone(host: HostView) -> NotApplicable | None:
    """Leave out a host that has no peer: there is none, or none could be reached."""
    if len(host.view.everyone) < 2:
        return NotApplicable("one host")
    if len(host.view.hosts) < 2:
        return NotApplicable(ALONE, outcome=Outcome.COULD_NOT_RUN)
    return None


def _find(
    severity: Severity,
    summary: str,
    hosts: Iterable[str] = (),
    *,
    check: str = "",
    seen: str = "",
    expected: str = "",
    hint: str = "",
    cure: Cure | None = None,
) -> Finding:
    """Return a finding of the rule that yields it, unless ``check`` names another."""
    return Finding(
        check=check,
        severity=severity,
        summary=summary,
        hosts=tuple(hosts),
        seen=seen,
        expected=expected,
        hint=hint,
        cure=cure,
    )


fail = partial(_find, Severity.FAIL)
"""A finding that makes the cluster unhealthy."""
warn = partial(_find, Severity.WARN)
"""A finding that fails the check only with ``--strict``."""
info = partial(_find, Severity.INFO)
"""Something worth knowing that is not wrong."""


def differ(
    find: Grade, what: str, values: Mapping[str, Hashable], **words: Any
) -> Iterator[Finding]:
    """Yield the finding that hosts differ in ``what``, of those that are in the minority, if any do."""
    split = dissent(values)
    if split is not None:
        yield find(split.told(what), split.minority, **words)
