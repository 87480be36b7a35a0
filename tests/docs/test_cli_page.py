"""The pages that are made of the source are what the program says."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from distconsole.checks.engine.catalogue import select_rules
from distconsole.expression import ExpressionError, Fields, parse_condition
from suite.cli_page import CONDITIONS, CONDITIONS_PAGE, PAGE, WIDTH, cli_page, tables
from suite.pages import README


def test_the_page_of_the_command_line_is_the_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    assert PAGE.read_text() == cli_page(), "make pages writes it anew"


@pytest.mark.parametrize(
    ("page", "name", "table"), tables(), ids=lambda each: each if len(str(each)) < 20 else ""
)
def test_a_table_of_a_page_is_that_of_the_source(page: Path, name: str, table: str) -> None:
    shown = page.read_text().partition(f"<!-- {name}: begin -->\n")[2]
    assert shown.partition(f"\n<!-- {name}: end -->")[0] == table, "make pages writes it"


def test_the_readmes_check_counts_all_checks_of_two_hosts() -> None:
    assert f" of {2 * len(select_rules(skip=['expect']))} checks passed, " in README.read_text()


def test_the_examples_of_conditions_mean_something() -> None:
    text = CONDITIONS_PAGE.read_text()
    first = text.split("```")[1].strip()
    examples = [each for line in first.splitlines() for each in re.split(r"\s{2,}", line)]
    examples += re.findall(r"--fail-if '([^']+)'", text)
    assert len(examples) == 9
    for example in examples:
        assert any(_means(example, fields) for fields in CONDITIONS), example


def _means(text: str, fields: Fields[Any]) -> bool:
    with suppress(ExpressionError):
        return parse_condition(text, fields) is not None
    return False
