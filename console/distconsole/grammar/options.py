"""Options that several verbs have, each said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.values import RanksPerHostValue, RunValue

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


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
