"""docs/reference/cli.md is what the program says."""

from __future__ import annotations

import pytest

from suite.cli_page import PAGE, WIDTH, cli_page


def test_the_page_of_the_command_line_is_that_of_the_grammar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", WIDTH)
    assert PAGE.read_text() == cli_page(), "make docs writes it anew"
