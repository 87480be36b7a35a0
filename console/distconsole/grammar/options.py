"""Options that several verbs have, each said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.values import RANKS_PER_HOST, RUN, WAYS, ConditionValue

F = TypeVar("F", bound=Callable[..., Any])


def with_options(command: F, *options: Callable[[F], F]) -> F:
    """Return ``command`` with ``options``, which its help has in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def condition_options(command: F) -> F:
    """Add ``--where`` and ``--fail-if``."""
    return with_options(
        command,
        click.option(
            "--where",
            "only",
            metavar="EXPR",
            type=ConditionValue(),
            help="Only what matches this: 'util<10 and host~gpu0'.",
        ),
        click.option(
            "--fail-if",
            metavar="EXPR",
            type=ConditionValue(),
            help="Exit with 1 if any of them matches this, and show which.",
        ),
    )


def notify_option(command: F) -> F:
    """Add ``--notify``."""
    option = click.option(
        "--notify",
        metavar="WAY,…",
        type=WAYS,
        help="Tell me of its end, failure and stall by these: bell, desktop, command, webhook; all or none.",
    )
    return option(command)


def run_argument(command: F) -> F:
    """Add ``RUN``."""
    return click.argument("run", type=RUN)(command)


def nproc_option(command: F) -> F:
    """Add ``--nproc``, the ranks on each host."""
    option = click.option(
        "--nproc",
        metavar="N|gpu",
        type=RANKS_PER_HOST,
        help="Ranks on each host (slots in the host list win).",
    )
    return option(command)
