"""docs/reference/expressions.md has the fields that there are, and its examples mean something."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from distconsole.expression import ExpressionError, Fields, parse_condition
from distconsole.runs.conditions.check_fields import CHECK_FIELDS
from distconsole.runs.conditions.load_fields import LOAD_FIELDS
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.conditions.summary_fields import summary_fields

PAGE = Path(__file__).parents[3] / "docs/reference/expressions.md"
TABLES = (RANK_FIELDS, CHECK_FIELDS, LOAD_FIELDS, summary_fields())


@pytest.mark.parametrize("fields", TABLES, ids=lambda fields: fields.of)
def test_the_page_has_every_field_as_the_program_has_it(fields: Fields[Any]) -> None:
    _, _, behind = PAGE.read_text().partition(f"<!-- {fields.of} -->\n")
    table = [line for line in behind.partition("\n\n")[0].splitlines() if line]
    head = ["| field | is a | without a unit | what it is |", "|---|---|---|---|"]
    assert table == head + [
        f"| `{each.name}` | {each.kind.value} | {each.bare or each.unit} | {each.about} |"
        for each in fields
    ]


def test_the_examples_of_the_page_mean_something() -> None:
    text = PAGE.read_text()
    first = text.split("```")[1].strip()
    examples = [each for line in first.splitlines() for each in re.split(r"\s{2,}", line)]
    examples += re.findall(r"--fail-if '([^']+)'", text)
    assert len(examples) == 9
    for example in examples:
        assert any(_means(example, fields) for fields in TABLES), example


def _means(text: str, fields: Fields[Any]) -> bool:
    try:
        parse_condition(text, fields)
    except ExpressionError:
        return False
    return True
