"""The pages that are made of the source are what the program says."""

from __future__ import annotations

import pytest

from suite.cli_page import CHECKS_PAGE, PAGE, WIDTH, checks_page, cli_page


def test_the_page_of_the_command_line_is_that_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    assert PAGE.read_text() == cli_page(), "make pages writes it anew"


def test_the_page_of_the_checks_has_the_tables_of_the_catalogue() -> None:
    assert CHECKS_PAGE.read_text() == checks_page(), "make pages writes it anew"
