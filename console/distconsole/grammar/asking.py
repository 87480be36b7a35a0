"""Help and version as requests: click would print them, which would tear a running screen. And what the pages say.

Verbs stand in groups, options under headings, then examples and exit codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from distconsole import __version__
from distconsole.grammar.pasting.starters import foreign_word
from distconsole.model.options import HEADINGS, Heading, heading_of
from distconsole.model.verbs import Group

PROGRAM = "distconsole"
EXIT_CODES = (
    ("0", "Healthy; the job succeeded."),
    ("1", "A check found a failure, or something here went wrong."),
    ("2", "A wrong line or configuration: the message says what, and where."),
    ("3", "No host can be reached, or one that the job needs cannot."),
    ("130, 143", "Stopped by Ctrl-C, by SIGTERM."),
)
OF_A_RUN = ("N", "Of a run: that of the rank that failed first, 128+S after signal S.")


COMMON = ("hosts", "nproc", "sync", "detach", "name")
"""Options of a launch that most need; its help begins with them."""


class HelpRequested(Exception):  # noqa: N818 - control flow out of click's option callback
    """Carries the help text out of click, which would print it."""


def help_option() -> click.Option:
    return _telling_option(["--help", "-h"], "Show this and stop.", click.Context.get_help)


def version_option() -> click.Option:
    text = f"{PROGRAM} {__version__}"
    return _telling_option(["--version", "-V"], "Show the version and stop.", lambda _: text)


def _telling_option(
    flags: list[str], does: str, tell: Callable[[click.Context], str]
) -> click.Option:
    def ask(context: click.Context, _option: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            raise HelpRequested(tell(context))

    return click.Option(
        flags, is_flag=True, is_eager=True, expose_value=False, callback=ask, help=does
    )


def dash_words(word: str) -> str:
    """Return an option as ours are written: torchrun takes ``--max_restarts``, too."""
    return word.replace("_", "-")


class NamedOption(click.Option):
    """An option that other launchers call by other names (``also``), which no help shows."""

    def __init__(self, flags: list[str], *, also: tuple[str, ...] = (), **more: Any) -> None:
        super().__init__([*flags[:-1], *also, flags[-1]], **more)
        self.also = frozenset(also)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        every, self.opts = self.opts, [each for each in self.opts if each not in self.also]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = every

    def get_error_hint(self, _ctx: click.Context | None) -> str:
        return f"'{next((each for each in self.opts if each.startswith('--')), self.opts[0])}'"


class NumberedFlag(NamedOption):
    """A flag whose letter means a number if one follows it: ``-n`` of ``run``, and ``-n 4`` of mpirun."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        option = parser._short_opt["-n"]
        as_flag = option.process

        def process(value: Any, state: Any) -> None:
            if state.rargs and state.rargs[0].isdigit():
                state.opts["ranks"] = state.rargs.pop(0)
            else:
                as_flag(value, state)

        option.process = process


class VerbCommand(click.Command):
    """A command that hands out its help; ``of_run``: its exit code may be that of a run."""

    def __init__(
        self,
        *words: Any,
        group: Group = Group.MANAGE,
        examples: tuple[str, ...] = (),
        of_run: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(*words, **more)
        self.context_settings["token_normalize_func"] = dash_words
        self.group, self.examples, self.of_run = group, examples, of_run

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a word such as ``-np`` is one option that is not ours, whatever its letters are."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except (click.UsageError, HelpRequested) as error:
            own = {flag for each in self.params for flag in each.opts}
            if word := foreign_word([word for word in given if word not in own]):
                raise click.NoSuchOption(word, ctx=ctx) from None
            if isinstance(error, click.UsageError):
                error.ctx = error.ctx or ctx
            raise

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return help_option()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self.get_params(ctx), ctx, formatter)
        write_end(self.examples, formatter, of_run=self.of_run)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what ``incomplete`` may become; names that are understood, and not ours, are left out."""
        options = (each for each in self.params if isinstance(each, NamedOption))
        others = frozenset[str]().union(*(each.also for each in options))
        found = super().shell_complete(ctx, incomplete)
        return [each for each in found if each.value not in others]


def is_typed(context: click.Context, name: str) -> bool:
    """Whether an option was given on the line itself: a default may be the configuration's."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


DIVIDED = "distconsole.divided"
"""In a context's ``meta``: whether ``--`` stood before the script."""


class DividedVerb(VerbCommand):
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


def write_options(
    options: Iterable[click.Parameter], context: click.Context, to: click.HelpFormatter
) -> None:
    """Write ``options`` under their headings, in the order that ``HEADINGS`` has, those of ``COMMON`` before all."""
    options = list(options)
    common = COMMON if {*COMMON} <= {each.name for each in options} else ()
    order = (*common, *" ".join(HEADINGS.values()).split())
    rows: dict[str, list[tuple[str, str]]] = {each: [] for each in ("common", *Heading)}
    for option in sorted(
        options, key=lambda each: order.index(each.name) if each.name in order else -1
    ):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            name = str(option.name)
            rows["common" if name in common else heading_of(name)].append(record)
    _write_tables({heading.capitalize(): rows[heading] for heading in rows}, to)


def write_verbs(commands: Mapping[str, click.Command], to: click.HelpFormatter) -> None:
    rows: dict[Group, list[tuple[str, str]]] = {each: [] for each in Group}
    width = max(map(len, commands))
    for name, command in commands.items():
        rows[getattr(command, "group", Group.MANAGE)].append(
            (name.ljust(width), str(command.short_help))
        )
    _write_tables({each.value.capitalize(): rows[each] for each in Group}, to)


def write_end(examples: Sequence[str], to: click.HelpFormatter, *, of_run: bool) -> None:
    if examples:
        with to.section("Examples"):
            for line in examples:
                to.write(f"  {PROGRAM} {line}\n")
    codes = (*EXIT_CODES, OF_A_RUN) if of_run else EXIT_CODES
    _write_tables({"Exit codes": list(codes)}, to)


def _write_tables(tables: Mapping[str, list[tuple[str, str]]], to: click.HelpFormatter) -> None:
    for title, rows in tables.items():
        if rows:
            with to.section(title):
                to.write_dl(rows)
