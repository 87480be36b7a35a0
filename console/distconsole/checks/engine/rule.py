"""A check as a value: what it needs to know and how it judges. Judging is pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from distconsole.checks.facts.evidence import Outcome, View
from distconsole.checks.facts.node import Facts
from distconsole.checks.rules.wording import dissent
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.model.reports import ChoiceReport
from distconsole.model.requests import Level


@dataclass(frozen=True, slots=True)
class Unjudged:
    """On these hosts, if there are any, the check has nothing to say, and why."""

    hosts: tuple[str, ...]
    why: str
    outcome: Outcome = Outcome.SKIPPED


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What the engines will choose, which the report shows whether it is found fault with or not."""

    choices: tuple[ChoiceReport, ...]


Said: TypeAlias = Finding | Unjudged | Foreseen
Judge: TypeAlias = Callable[[View], Iterable[Said]]


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
    """

    id: str
    group: str
    level: Level
    needs: tuple[type[Facts], ...]
    catches: str
    hint: str
    judge: Judge
    after: tuple[type[Facts], ...] = ()


class Hinted(NamedTuple):
    """A judge with what to do in general where it finds something."""

    judge: Judge
    hint: str


def hint(text: str) -> Callable[[Judge], Hinted]:
    """Say of a judge what to do in general where it finds something."""
    return lambda judge: Hinted(judge, text)


def rule(
    check: str,
    group: str,
    level: Level,
    *needs: type[Facts],
    after: tuple[type[Facts], ...] = (),
) -> Callable[[Hinted], Rule]:
    """Make a rule of a judge; the first paragraph of its docstring is what the rule catches."""

    def decorate(hinted: Hinted) -> Rule:
        catches = (hinted.judge.__doc__ or "").partition("\n\n")[0]
        return Rule(check, group, level, needs, catches, hinted.hint, hinted.judge, after)

    return decorate


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
    find: Callable[..., Finding], what: str, values: Mapping[str, Hashable], **words: str
) -> Iterator[Finding]:
    """Yield the finding that hosts differ in ``what``, of those that are in the minority, if any do."""
    split = dissent(values)
    if split is not None:
        yield find(split.told(what), split.minority, **words)
