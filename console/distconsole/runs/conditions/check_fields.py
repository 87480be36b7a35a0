"""Fields of conditions on a check: rows and a table."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from distconsole.expression import Condition, parse_condition
from distconsole.expression.fields import Field, Fields, ValueKind

SIGNS = re.compile(r"[<>=~!()&|'\"]|\b(?:and|or|not)\b")
"""Fields that conditions on a check know, and plain words do not."""


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A finding, or the outcome of a check on its hosts; on all hosts for one about the cluster.

    ``outcome`` is a finding's severity, or the check's; ``findings`` has a line for each.
    """

    check: str
    hosts: tuple[str, ...]
    outcome: str
    findings: tuple[str, ...] = ()


CHECK_FIELDS: Fields[CheckRow] = Fields(
    "checks",
    (
        Field("check", lambda row: row.check, "its name", ValueKind.TEXT),
        Field("host", lambda row: row.hosts or None, "its hosts", ValueKind.TEXT),
        Field(
            "outcome",
            lambda row: row.outcome,
            "fail, warn, info, pass, skipped, running, timed_out or could_not_run",
            ValueKind.TEXT,
        ),
        Field("finding", lambda row: row.findings or None, "its summary", ValueKind.TEXT),
    ),
)


def check_condition(text: str) -> Condition[CheckRow]:
    """Parse a condition, or plain words that a row has all of; raises ExpressionError."""
    if SIGNS.search(text):
        return parse_condition(text, CHECK_FIELDS)
    each = (
        " or ".join(f"{name}~'{word}'" for name in CHECK_FIELDS.names) for word in text.split()
    )
    return replace(
        parse_condition(" and ".join(f"({one})" for one in each), CHECK_FIELDS), text=text
    )
