"""The click group over all verbs and the two ways in: a shell's words and a line of the prompt."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from distconsole.config.spelling import nearest
from distconsole.errors import UntrustedError, UsageError
from distconsole.grammar.asking import PROGRAM, HelpRequested, ask_for_version, help_option
from distconsole.grammar.options import OPENING_OPTIONS, opening, params_of, where
from distconsole.grammar.values import Vocabulary
from distconsole.grammar.verbs import VERB_COMMANDS
from distconsole.grammar.words import words_of
from distconsole.model import requests as ask
from distconsole.model.verbs import verb_of


class _Root(click.Group):
    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return help_option()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        known = self.get_command(ctx, name) is not None or name.startswith("-")
        if not known and not ctx.resilient_parsing:
            near = nearest(name, VERBS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"There is no verb {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.pass_context
def _open(context: click.Context, /, **given: Any) -> ask.Request | None:
    """Check, launch and watch distributed training on machines that you reach over SSH."""
    verb = context.invoked_subcommand
    if verb is None:
        return ask.OpenConsole(**opening(context, given), where=where(context, given))
    opens = [name for name, command in root.commands.items() if _opens_console(command)]
    for option, name in (("--theme", "theme"), ("--no-startup", "startup")):
        if given[name] is not None and verb not in opens:
            raise click.UsageError(
                f"{option} is of the console, which opens without a verb, or with {', '.join(opens)}.",
                context,
            )
    return None


def _opens_console(command: click.Command) -> bool:
    return set(OPENING_OPTIONS) <= {option.name for option in command.params}


root = _Root(
    PROGRAM,
    {str(command.name): command for command in VERB_COMMANDS},
    invoke_without_command=True,
    no_args_is_help=False,
    callback=_open,
    params=[
        *params_of(ask.Where).values(),
        *params_of(ask.Opening).values(),
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=ask_for_version,
            help="Show the version and stop.",
        ),
    ],
    help=_open.__doc__,
    epilog="Without a verb the console opens. RUN is an id, a unique prefix, a name, or 'last'.",
)

VERBS: dict[str, str] = {
    str(command.name): command.get_short_help_str(80)
    for command in VERB_COMMANDS
    if not command.hidden
}
"""Every verb that works with one line of what it does, in the order of the help."""


def parse_args(
    words: Sequence[str],
    vocabulary: Vocabulary | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> ask.Request:
    """Return what ``words`` (without the program's name) ask for.

    Raises UsageError if they mean nothing; the hint says where help is.
    """
    try:
        request = root.main(
            list(words),
            prog_name=PROGRAM,
            standalone_mode=False,
            obj=vocabulary or Vocabulary(),
            default_map={verb: dict(flags) for verb, flags in (defaults or {}).items()},
        )
    except HelpRequested as asked:
        return ask.ShowHelp(str(asked))
    except click.exceptions.NoArgsIsHelpError as error:
        return ask.ShowHelp(error.format_message())
    except click.UsageError as error:
        raise usage_error(error) from None
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    except ValueError as error:  # a path with a NUL or half a character, which no file has
        raise UsageError(f"no path can be so: {error}") from None
    assert request is not None
    return request  # type: ignore[no-any-return]


def parse_line(
    line: str,
    vocabulary: Vocabulary | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> ask.Request:
    """Return what a line of the prompt asks for; ``help [VERB]`` works there too.

    Raises UsageError if the line is empty, its quotes do not match, or it means nothing.
    """
    words = line_words(line)
    if not words:
        raise UsageError("nothing was asked", "type a verb, or 'help'")
    if words[0] in ("help", "?"):
        words = [*words[1:2], "--help"]
    return parse_args(words, vocabulary, defaults)


def parse_untrusted(words: Sequence[str], error: UntrustedError) -> ask.Request:
    """Return what ``words`` ask for where that is done whatever a project's file says.

    Raises UntrustedError ``error``, where they ask for anything else.
    """
    with suppress(UsageError):
        request = parse_args(words)
        if not verb_of(request).trusts:
            return request
    raise error


def line_words(line: str) -> list[str]:
    """Return the words of a line of the prompt, without the program's name; none for an empty one.

    Raises UsageError if its quotes do not match.
    """
    try:
        words = words_of(line)
    except ValueError as error:
        raise UsageError(
            f"cannot split the line: {error}", "close the quote, or escape it"
        ) from None
    return words[1:] if words[:1] == [PROGRAM] else words


def shell_complete(vocabulary: Vocabulary | None = None) -> None:
    """Answer a shell's completion request (``_DISTCONSOLE_COMPLETE`` is set) and exit."""
    root.main(prog_name=PROGRAM, obj=vocabulary or Vocabulary())


def usage_error(error: click.UsageError) -> UsageError:
    """Return click's error as ours, with the option that it is about."""
    context = error.ctx
    path = context.command_path if context is not None else PROGRAM
    made = UsageError(error.format_message(), _meant(error) or f"see '{path} --help'")
    if isinstance(error, click.BadParameter) and error.param is not None:
        made.option = str(error.param.name)
    return made


def _meant(error: click.UsageError) -> str:
    kind = error.param.type if isinstance(error, click.BadParameter) and error.param else None
    typed = re.match(r"'([^']*)'", error.message)
    if not isinstance(kind, click.Choice) or typed is None:
        return ""
    near = nearest(typed[1], kind.choices)
    return f"did you mean {near}?" if near else ""
