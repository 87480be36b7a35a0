"""The pages of help: verbs in groups, options under headings, examples, exit codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import click

from distconsole.model.options import HEADINGS, Heading, heading_of
from distconsole.model.verbs import Group

EXIT_CODES = (
    ("0", "Healthy; the job succeeded."),
    ("1", "A check found a failure, or something here went wrong."),
    ("2", "A wrong line or configuration: the message says what, and where."),
    ("3", "No host can be reached, or one that the job needs cannot."),
    ("130, 143", "Stopped by Ctrl-C, by SIGTERM."),
)
OF_A_RUN = ("N", "Of a run: that of the rank that failed first, 128+S after signal S.")


def write_options(
    options: Iterable[click.Parameter], context: click.Context, to: click.HelpFormatter
) -> None:
    """Write ``options`` under their headings, in the order that ``HEADINGS`` has."""
    rows: dict[Heading, list[tuple[str, str]]] = {each: [] for each in Heading}
    places = {name: at for at, name in enumerate(" ".join(HEADINGS.values()).split())}
    for option in sorted(options, key=lambda each: places.get(str(each.name), 0)):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            rows[heading_of(str(option.name))].append(record)
    _write_tables({each.capitalize(): rows[each] for each in Heading}, to)


def write_verbs(commands: Mapping[str, click.Command], to: click.HelpFormatter) -> None:
    """Write the verbs with what they do, in groups."""
    rows: dict[Group, list[tuple[str, str]]] = {each: [] for each in Group}
    width = max(map(len, commands))
    for name, command in commands.items():
        rows[getattr(command, "group", Group.MANAGE)].append(
            (name.ljust(width), str(command.short_help))
        )
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
