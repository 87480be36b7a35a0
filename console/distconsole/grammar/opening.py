"""The options that say how the console opens, on every verb that opens it. They open nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.options import with_options
from distconsole.grammar.values import THEME

F = TypeVar("F", bound=Callable[..., Any])

OPENING_OPTIONS = ("theme", "startup")


def opening_options(command: F) -> F:
    """Add ``--theme`` and ``--startup/--no-startup``."""
    return with_options(
        command,
        click.option(
            "--theme",
            type=THEME,
            metavar="NAME",
            help="Of the console: dark, light, contrast, terminal, or Textual's.",
        ),
        click.option(
            "--startup/--no-startup",
            "startup",
            default=None,
            help="Do the lines of the console's start-up file first.  [default: startup]",
        ),
    )


def opening(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of ``given``; what the verb does not say, the group's may."""
    before: dict[str, Any] = context.find_root().params
    own = {name: given.pop(name, None) for name in OPENING_OPTIONS}
    return {name: before.get(name) if said is None else said for name, said in own.items()}
