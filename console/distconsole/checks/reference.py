"""The catalogue as text: ``check --explain`` and docs/checks.md are both made here."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import groupby

from distconsole.checks.catalogue import CATALOGUE, rule_called
from distconsole.checks.groups import GROUP_NAMES
from distconsole.errors import UsageError
from distconsole.model.events import Event, TextMade
from distconsole.model.requests import Explain


def explain(check: str) -> str:
    """Return what one check does.

    Raises:
        UsageError: if there is none of this id.
    """
    rule = rule_called(check)
    if rule is None:
        ids = [each.id for each in CATALOGUE]
        near = difflib.get_close_matches(check, ids, 1) or [
            each for each in ids if each.startswith(check)
        ]
        raise UsageError(
            f"there is no check {check}",
            f"did you mean {near[0]}?" if near else "see docs/checks.md",
        )
    needs = ", ".join(GROUP_NAMES[kind] for kind in rule.needs)
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


def reference_page() -> str:
    """Return docs/checks.md."""
    lines = [
        "# The checks",
        "",
        "Made by `python -m distconsole.checks`; a test keeps it true. `--only` and `--skip` take a group,",
        "an id, or the beginning of an id.",
        "",
    ]
    for group, rules in groupby(CATALOGUE, key=lambda rule: rule.group):
        lines += [f"## {group}", "", "| id | from level | catches | hint |", "|---|---|---|---|"]
        for rule in rules:
            cells = (f"`{rule.id}`", rule.level.value, rule.catches, rule.hint)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"
