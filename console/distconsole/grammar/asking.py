"""Help and version as requests: click would print them, which would tear a running screen."""

from __future__ import annotations

import click

from distconsole import __version__

PROGRAM = "distconsole"


class HelpRequested(Exception):  # noqa: N818 - control flow out of click's option callback
    """Carries the help text out of click, which would print it."""


def ask_for_help(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        raise HelpRequested(context.get_help())


def ask_for_version(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        raise HelpRequested(f"{PROGRAM} {__version__}")


def help_option() -> click.Option:
    return click.Option(
        ["--help", "-h"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=ask_for_help,
        help="Show this and stop.",
    )


class Verb(click.Command):
    """A command whose help is handed to the caller instead of being printed."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return help_option()


DIVIDED = "distconsole.divided"
"""In a context's ``meta``: whether ``--`` stood before the script."""


class DividedVerb(Verb):
    """A verb whose last arguments are a script's or a command's; it remembers a ``--`` before them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and note the ``--``, which click takes away."""
        given = list(args)
        rest = super().parse_args(ctx, args)
        words = [ctx.params.get("script"), *(ctx.params.get("arguments") or ())]
        behind = len([word for word in words if word is not None])
        behind += len(ctx.params.get("command") or ())
        ctx.meta[DIVIDED] = len(given) > behind > 0 and given[-behind - 1] == "--"
        return rest
