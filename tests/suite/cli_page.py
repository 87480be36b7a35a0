"""The pages of docs/reference that are made of the source: ``make pages`` writes them."""

from __future__ import annotations

import os

from distconsole.checks.engine.catalogue import catalogue_tables
from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model import requests as ask
from suite.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"
CHECKS_PAGE = PAGE.with_name("checks.md")
WIDTH = "80"
HEAD = """# Command line

What `--help` prints, made of the grammar by `make pages`. Options of hosts stand before or behind the verb. Every option is a key of
[distconsole.toml](configuration.md). [Exit codes](exit-codes.md), [environment](environment.md).
"""


def cli_page() -> str:
    """Return the page: the help of the program, then that of each verb."""
    verbs = [f"## {verb}\n\n{_help(verb)}" for verb in VERBS]
    return "\n".join([HEAD, _help(), *verbs])


def _help(*verb: str) -> str:
    shown = parse_args([*verb, "--help"])
    assert isinstance(shown, ask.ShowHelp)
    return f"```text\n{shown.text.rstrip()}\n```\n"


def checks_page() -> str:
    """Return the page of the checks: what is written above its first table, and the tables."""
    return CHECKS_PAGE.read_text().partition("## ")[0] + catalogue_tables()


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    PAGE.write_text(cli_page())
    CHECKS_PAGE.write_text(checks_page())
