"""The pages of docs/reference that are made of the source: ``make pages`` writes them."""

import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from distconsole.checks.engine.catalogue import CATALOGUE
from distconsole.checks.facts.evidence import by_key
from distconsole.grammar.verbs import VERBS, parse_args
from distconsole.model import requests as ask
from distconsole.runs.conditions.check_fields import CHECK_FIELDS
from distconsole.runs.conditions.load_fields import LOAD_FIELDS
from distconsole.runs.conditions.rank_fields import RANK_FIELDS
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.tui.prompt.keys import FIRST_KEYS, KEYS, REPLAY_KEYS, VIEWS, Key
from distconsole.tui.views.help import PARTS_WITH_KEYS, part_keys
from suite.pages import REPOSITORY, put_between_marks

PAGE = REPOSITORY / "docs" / "reference" / "cli.md"
CHECKS_PAGE = PAGE.with_name("checks.md")
KEYS_PAGE = PAGE.with_name("keys.md")
CONDITIONS_PAGE = PAGE.with_name("expressions.md")
CONDITIONS = (RANK_FIELDS, CHECK_FIELDS, LOAD_FIELDS, summary_fields())
WIDTH = "80"
HEAD = """# Command line

The `--help` of each verb, by `make pages`. "As above" names the options that an earlier verb explains in the same words.
Options of hosts stand before or behind the verb. Options but `--explain`, `--write-profile`, `--at`, `--show`, `--revoke` are keys of [distconsole.toml](configuration.md).
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
        if section.startswith("Exit codes:"):
            continue
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


def tables() -> Iterator[tuple[Path, str, str]]:
    """Yield a page, the name of the marks around a table there, and the table."""
    yield CHECKS_PAGE, "checks", _checks()
    for name, keys in (("keys", KEYS), ("first", FIRST_KEYS), ("moving", REPLAY_KEYS)):
        yield KEYS_PAGE, name, _table("| key | | types | works |", map(_key_row, keys))
    parts = (
        f"| {title} | {'; '.join(f'{keys}: {does}' for keys, does in part_keys(part))} |"
        for title, part in PARTS_WITH_KEYS
    )
    yield KEYS_PAGE, "parts", _table("| in | keys |", parts)
    for fields in CONDITIONS:
        rows = (
            f"| `{each.name}` | {', '.join(filter(None, (each.kind.value, each.bare or each.unit)))} | {each.about} |"
            for each in fields
        )
        yield (
            CONDITIONS_PAGE,
            fields.of.replace(" ", "-"),
            _table("| field | is a | meaning |", rows),
        )


def _checks() -> str:
    """A table of the checks of each group."""
    lines = []
    for group, rules in by_key((rule.group, rule) for rule in CATALOGUE).items():
        lines += [f"### {group}", "", "| id | catches |", "|---|---|"]
        for rule in rules:
            level = "" if rule.level is ask.Level.QUICK else f" ({rule.level.value})"
            catches = rule.catches.replace("|", "\\|")
            lines.append(f"| `{rule.id}`{level} | {catches} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def _key_row(key: Key) -> str:
    place = "any view" if key.views == VIEWS else ", ".join(key.views)
    works = f"inside {place}" if key.inside else place if key.only else "anywhere"
    line = f"`{key.line.strip()}`" if key.line else "(opens it)"
    return f"| `{key.shown}` | {key.does} | {line}{' …' if key.asks else ''} | {works} |"


if __name__ == "__main__":
    os.environ["COLUMNS"] = WIDTH
    PAGE.write_text(cli_page())
    for page, name, text in tables():
        put_between_marks(page, name, text)
