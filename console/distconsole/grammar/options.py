"""Options that several verbs have, each said once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from distconsole.grammar.values import RanksPerHostValue, RunValue, WaysValue, vocabulary

F = TypeVar("F", bound=Callable[..., Any])

UNFINISHED_NAME = re.compile(r"[A-Za-z_][\w.]*$")


def with_options(command: F, *options: Callable[[F], F]) -> F:
    """Return ``command`` with ``options``, which its help has in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


class ConditionValue(click.ParamType):  # type: ignore[type-arg]
    """A condition; completes the name at its end with the fields of the verb."""

    name = "EXPR"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete a name that is being typed; after it the condition goes on."""
        start = UNFINISHED_NAME.search(incomplete)
        begun = incomplete[start.start() :] if start else ""
        done = incomplete[: len(incomplete) - len(begun)]
        fields = vocabulary(ctx).fields(ctx.info_name or "")
        return [
            CompletionItem(f"{done}{name}", help=about, shown=name, goes_on=True)
            for name, about in fields.items()
            if name.startswith(begun)
        ]


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
