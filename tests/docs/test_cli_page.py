"""The pages that are made of the source are what the program says."""

from __future__ import annotations

import pytest

from distconsole.checks.engine.catalogue import catalogue_tables
from suite.cli_page import CHECKS_PAGE, PAGE, WIDTH, cli_page


def test_the_page_of_the_command_line_is_that_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    assert PAGE.read_text() == cli_page(), "make pages writes it anew"


def test_the_page_of_the_checks_has_the_tables_of_the_catalogue() -> None:
    assert catalogue_tables() in CHECKS_PAGE.read_text(), "make pages writes it anew"
