"""Results of a check: findings, and hosts to which it does not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TypeAlias

import msgspec

from distconsole.checks.facts.evidence import Outcome
from distconsole.model.findings import Cure, Finding, Severity
from distconsole.model.reports import ChoiceReport

HERE = "\0"
"""In a finding's words it stands for the hosts: findings that are alike on several hosts become one."""


class NotApplicable(msgspec.Struct, frozen=True):
    """On these hosts, if there are any, the check has nothing to say, and why."""

    why: str
    hosts: tuple[str, ...] = ()
    outcome: Outcome = Outcome.SKIPPED


class PredictedChoices(msgspec.Struct, frozen=True):
    """Choices that the engines will make, which the report shows in any case."""

    choices: tuple[ChoiceReport, ...]
    hosts: tuple[str, ...] = ()


RuleResult: TypeAlias = Finding | NotApplicable | PredictedChoices
RuleResults: TypeAlias = Iterator[RuleResult]
Grade: TypeAlias = Callable[..., Finding]


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
