"""docs/reference/cli.md, made of the grammar: ``python -m suite.cli_page`` in tests/ writes it."""

from __future__ import annotations

import os

from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model import requests as ask
from suite.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"
WIDTH = "80"
HEAD = """# Command line

What `--help` prints, made of the grammar by `make docs`. Options of hosts stand before or behind the verb. Every option is a key of
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


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    PAGE.write_text(cli_page())
