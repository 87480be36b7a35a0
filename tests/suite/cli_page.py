"""The pages of docs/reference that are made of the source: ``make pages`` writes them."""

from __future__ import annotations

import os
import re
import textwrap

from distconsole.checks.engine.catalogue import catalogue_tables
from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model import requests as ask
from suite.pages import REPOSITORY, put_between_marks

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"
CHECKS_PAGE = PAGE.with_name("checks.md")
WIDTH = "80"
HEAD = """# Command line

What `--help` prints, made of the grammar by `make pages`. What an earlier verb explains in the same words is only named here, under "As above".
Options of hosts stand before or behind the verb. Every option is a key of [distconsole.toml](configuration.md).
[Exit codes](json-events.md#exit-codes), [environment](configuration.md#environment-variables).
"""


def cli_page() -> str:
    """Return the page: the help of the program, then that of each verb."""
    explained: set[str] = set()
    parts = [HEAD, _help(explained)]
    parts += [f"## {verb}\n\n{_help(explained, verb)}" for verb in VERBS]
    return "\n".join(parts)


def _help(explained: set[str], *verb: str) -> str:
    """Return the help of a verb; an option that the page has explained in the same words is only named."""
    shown = parse_args([*verb, "--help"])
    assert isinstance(shown, ask.ShowHelp)
    kept, named = [], []
    for section in shown.text.rstrip().split("\n\n"):
        title, *rows = re.split(r"\n  (?=[-\d]|N  )", section)
        new = [row for row in rows if " ".join(row.split()) not in explained]
        if new or not rows:
            kept.append("\n  ".join([title, *new]))
        if title == "Hosts:" and not new:
            named.append("--hosts … --container")
        else:
            old = [re.search(r"--[\w-]+", row) for row in rows if row not in new]
            named += [name[0] for name in old if name and name[0] != "--help"]
        explained.update(" ".join(row.split()) for row in rows)
    if named:
        kept.append(textwrap.fill(f"As above: {' '.join(named)}", 80, break_on_hyphens=False))
    return "```text\n" + "\n\n".join(kept) + "\n```\n"


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    PAGE.write_text(cli_page())
    put_between_marks(CHECKS_PAGE, "checks", catalogue_tables())
