"""The catalogue as text: ``check --explain``, and the tables of docs/checks.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from distconsole.checks.engine.catalogue import CATALOGUE, find_rule
from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import Explain


def explain(check: str) -> str:
    """Return what one check does, or what those of a group or the beginning of an id catch.

    Raises:
        UsageError: if there is none of this id.
    """
    rule = find_rule(check)
    if rule is None:
        some = [each for each in CATALOGUE if each.group == check or each.id.startswith(check)]
        if check and some:
            width = max(len(each.id) for each in some)
            return "\n".join(f"{each.id:<{width}}  {each.catches}" for each in some)
        near = nearest(check, [each.id for each in CATALOGUE])
        raise UsageError(
            f"there is no check {check}",
            f"did you mean {near}?" if near else "see docs/checks.md",
        )
    needs = ", ".join(kind.group for kind in rule.needs)
    return "\n".join(
        [
            f"{rule.id}   group {rule.group}, from --level {rule.level.value} on",
            f"  catches: {rule.catches}",
            f"  hint:    {rule.hint}",
            f"  reads:   {needs}",
        ]
    )


def explain_check(request: Explain) -> Iterator[Event]:
    """Answer ``check --explain ID``.

    Raises:
        UsageError: if there is no such check.
    """
    yield TextMade(text=explain(request.check))


def catalogue_tables() -> str:
    """Return the tables at the end of docs/checks.md: all checks, a table for each group."""
    lines = []
    for group, rules in groupby(CATALOGUE, key=lambda rule: rule.group):
        lines += [f"## {group}", "", "| id | from level | catches | hint |", "|---|---|---|---|"]
        for rule in rules:
            cells = (f"`{rule.id}`", rule.level.value, rule.catches, rule.hint)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
