"""The pages of help: verbs in groups, options under headings, examples, exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from distconsole.model.options import Heading, heading_of
from distconsole.model.verbs import Group

EXIT_CODES = (
    ("0", "Healthy; the job succeeded."),
    ("1", "A check found a failure, or something here went wrong."),
    ("2", "What was typed or configured means nothing."),
    ("3", "Hosts cannot be reached: none, or one that the job needs."),
    ("130, 143", "Stopped by Ctrl-C, by SIGTERM."),
)
OF_A_RUN = ("N", "Of a run: that of the rank that failed first, 128+S after signal S.")


def write_options(
    options: Iterable[click.Parameter], context: click.Context, to: click.HelpFormatter
) -> None:
    """Write ``options`` under their headings."""
    rows: dict[Heading, list[tuple[str, str]]] = {each: [] for each in Heading}
    for option in options:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            rows[heading_of(str(option.name))].append(record)
    _write_tables({each.capitalize(): rows[each] for each in Heading}, to)


def write_verbs(commands: Mapping[str, click.Command], to: click.HelpFormatter) -> None:
    """Write the verbs that work with what they do, in groups."""
    rows: dict[Group, list[tuple[str, str]]] = {each: [] for each in Group}
    for name, command in commands.items():
        if not command.hidden:
            rows[getattr(command, "group", Group.MANAGE)].append((name, str(command.short_help)))
    _write_tables({each.value.capitalize(): rows[each] for each in Group}, to)


def write_end(
    program: str, examples: Sequence[str], to: click.HelpFormatter, *, of_run: bool
) -> None:
    """Write examples, and what the exit code says."""
    if examples:
        with to.section("Examples"):
            for line in examples:
                to.write(f"  {program} {line}\n")
    codes = (*EXIT_CODES, OF_A_RUN) if of_run else EXIT_CODES
    _write_tables({"Exit codes": list(codes)}, to)


def _write_tables(tables: Mapping[str, list[tuple[str, str]]], to: click.HelpFormatter) -> None:
    for title, rows in tables.items():
        if rows:
            with to.section(title):
                to.write_dl(rows)
