"""Options that several verbs have, each said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.values import RanksPerHostValue, RunValue, WaysValue

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def condition_options(command: F) -> F:
    """Add ``--where`` and ``--fail-if``."""
    for option in (
        click.option(
            "--fail-if",
            metavar="EXPR",
            help="Exit with 1 if any of them matches this, and show which.",
        ),
        click.option(
            "--where",
            "only",
            metavar="EXPR",
            help="Only what matches this: 'util<10 and host~gpu0'.",
        ),
    ):
        command = option(command)
    return command


def notify_option(command: F) -> F:
    """Add ``--notify``."""
    option = click.option(
        "--notify",
        metavar="WAY,…",
        type=WaysValue(),
        help="Tell me of its end, failure and stall by these: bell, desktop, command, webhook; all or none.",
    )
    return option(command)


def run_argument(command: F) -> F:
    """Add ``RUN``."""
    return click.argument("run", type=RunValue())(command)


def nproc_option(command: F) -> F:
    """Add ``--nproc``, the ranks on each host."""
    option = click.option(
        "--nproc",
        metavar="N|gpu",
        type=RanksPerHostValue(),
        help="Ranks on each host (slots in the host list win).",
    )
    return option(command)
