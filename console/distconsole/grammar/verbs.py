"""The verbs, each of which makes a ``Request`` of what was given, and the two ways in: a shell's words and a line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from distconsole.errors import ConfigError, UsageError
from distconsole.grammar import asking
from distconsole.grammar.effects import refuse_idle_options
from distconsole.grammar.options import HOST_OPTIONS, LAUNCH_OPTIONS, opening, params_of, where
from distconsole.grammar.values import CHECK, RUN, ScriptWord, Vocabulary
from distconsole.grammar.words import line_words
from distconsole.model import requests as ask
from distconsole.model import verbs as table

Given = dict[str, Any]


def _request(kind: type[ask.Request], context: click.Context, given: Given) -> ask.Request:
    if issubclass(kind, ask.Opening):
        given |= opening(context, given)
    if issubclass(kind, ask.OnHosts):
        given["where"] = where(context, given)
    if issubclass(kind, ask.OfRun):
        given["run"] = given["run"] or ""
    return kind(**given)


class LateCommand(NamedTuple):
    """A verb, and what makes its command; those of all verbs take 0.7 MB and 15 ms."""

    name: str
    short_help: str
    kind: type[ask.Request]
    command: Callable[[], click.Command]


def _verb(
    kind: type[ask.Request],
    short_help: str,
    *arguments: click.Parameter,
    build: Callable[[click.Context, Given], ask.Request] | None = None,
    params: Callable[[], dict[str, click.Parameter]] | None = None,
    examples: tuple[str, ...] = (),
) -> LateCommand:
    """Return the verb that makes a kind of request, by ``build`` where it holds more than what was given.

    ``arguments`` stand behind its options, or behind ``params``; ``examples`` are of its other requests.
    """

    @click.pass_context
    def callback(context: click.Context, /, **given: Any) -> ask.Request:
        made = build(context, given) if build is not None else _request(kind, context, given)
        refuse_idle_options(made, context)
        return made

    row = table.VERBS[kind]
    name = row.name.split()[0]
    with_script = kind in (ask.Check, ask.Run)

    @cache
    def command() -> click.Command:
        options = (params_of(kind) if params is None else params()).values()
        return (asking.DividedVerb if with_script else asking.VerbCommand)(
            name,
            params=[*sorted(options, key=lambda each: each.name in HOST_OPTIONS), *arguments],
            callback=callback,
            help=inspect.getdoc(kind),
            short_help=short_help,
            options_metavar="[OPTIONS] [--]" if with_script else "[OPTIONS]",
            context_settings={"allow_interspersed_args": not with_script},
            group=row.group,
            examples=(*row.examples, *examples),
            of_run=row.role in (table.RunRole.RECORDS, table.RunRole.FOLLOWS),
        )

    return LateCommand(name, short_help, kind, command)


def _check(context: click.Context, given: Given) -> ask.Request:
    from distconsole.grammar.mistakes import hosts_meant, refuse_hosts_behind
    from distconsole.grammar.pasting.take import take_target

    if check := given.pop("explain"):
        return ask.Explain(check=check)
    asked = where(context, given)
    said = (
        asked.names_hosts
        or given["module"]
        or given["workdir"]
        or context.meta.get(asking.DIVIDED)
    )
    if not said and (cure := hosts_meant(given["command"])):
        raise UsageError(f"there is no script {given['command'][0]} here", cure)
    if not context.meta.get(asking.DIVIDED):
        refuse_hosts_behind(asked.hosts, given["command"])
    target, named = take_target(context, given)
    return ask.Check(where=asked.over(named), target=target, **given)


def _run(context: click.Context, given: Given) -> ask.Request:
    from distconsole.grammar.mistakes import refuse_hosts_behind, refuse_path
    from distconsole.grammar.pasting.read import MODULES, refuse_program, starts_ranks
    from distconsole.grammar.pasting.take import take_command

    divided = bool(context.meta.get(asking.DIVIDED))
    words = (given["script"], *given["arguments"])
    if given["module"] and words[0] in MODULES:
        words, given["module"] = ("python", "-m", *words), False
    if given["module"]:
        refuse_path(given["script"])
    elif starts_ranks(words, given["workdir"]):
        take_command(context, given, words)
        divided = True
    elif not divided:
        refuse_hosts_behind(given["hosts"], words)
    if not given["module"]:
        refuse_program(given["script"], given["workdir"])
    said = context.get_parameter_source("max_restarts") is not ParameterSource.DEFAULT
    if not given["max_restarts"] and not said:
        fewest, most = ask.count_of_hosts(given["nnodes"]) or (0, 0)
        given["max_restarts"] = most - fewest
    return ask.Run(divided=divided, where=where(context, given), **given)


def _rerun(context: click.Context, given: Given) -> ask.Request:
    names = tuple(name for word in given["exclude"] for name in word.split(",") if name)
    return _request(ask.Rerun, context, given | {"exclude": names})


def _init(context: click.Context, given: Given) -> ask.Request:
    """Take ``--cluster`` as a new name, not as that of configured hosts."""
    name = given.pop("cluster")
    found = where(context, given)
    return ask.Init(cluster=found.cluster or name, where=replace(found, cluster=None), **given)


def _why(context: click.Context, given: Given) -> ask.Request:
    """Take ``--hosts`` without a list as the hosts that are configured."""
    alone = given["hosts"] == ""
    return _request(ask.Why, context, given | {"hosts": given["hosts"] or None, "jobs": alone})


def _export(context: click.Context, given: Given) -> ask.Request:
    asked = ask.Export(where=where(context, given), **given)
    if asked.run is None and asked.format is not ask.ExportFormat.PROMETHEUS:
        asked = replace(asked, run="")
    if asked.format is ask.ExportFormat.TENSORBOARD and asked.output is None:
        raise click.UsageError("--format tensorboard writes a folder: name it with -o.", context)
    if asked.listen is not None and asked.output is not None:
        raise click.UsageError("--listen and -o exclude each other: give one of them.", context)
    return asked


BENCHES: dict[str, type[ask.Bench | ask.BenchCollectives]] = {
    "collectives": ask.BenchCollectives,
    "strategies": ask.Bench,
}


def _bench(context: click.Context, given: Given) -> ask.Request:
    what = given.pop("what")
    params = params_of(BENCHES[what])
    for name in [each for each in given if each not in params]:
        if asking.is_typed(context, name):
            raise click.UsageError(f"bench {what} has no --{name.removesuffix('_seconds')}")
        del given[name]
    return _request(BENCHES[what], context, given)


VERB_COMMANDS: tuple[LateCommand, ...] = (
    _verb(
        ask.Check,
        "Check the hosts: faults, evidence and cures.",
        click.Argument(
            ["command"], nargs=-1, type=ScriptWord(), metavar="[SCRIPT|COMMAND] [ARGS]..."
        ),
        build=_check,
        params=lambda: {
            "explain": click.Option(
                ["--explain"],
                metavar="ID",
                type=CHECK,
                help="Describe a check, or a group of them, and stop.",
            ),
            **params_of(ask.Check),
            **{name: params_of(ask.Run)[name] for name in LAUNCH_OPTIONS},
        },
    ),
    _verb(
        ask.Run,
        "Launch a script on every host and follow it.",
        click.Argument(["script"], type=ScriptWord()),
        click.Argument(["arguments"], nargs=-1, type=ScriptWord()),
        build=_run,
    ),
    _verb(ask.Top, "GPUs, processes and load of the hosts, live."),
    _verb(ask.Runs, "Past and present runs."),
    _verb(ask.Show, "One run's summary, or its ranks by a condition."),
    _verb(ask.Attach, "Follow a run that is going on."),
    _verb(ask.Logs, "Lines that the ranks printed."),
    _verb(ask.Stop, "Stop a run on every host."),
    _verb(ask.Rerun, "The same again.", build=_rerun),
    _verb(ask.Why, "Why a run hangs: the rank that the others wait for.", build=_why),
    _verb(ask.Watch, "Training that others have started: ranks, GPUs, logs."),
    _verb(ask.Trace, "Profile the ranks' steps, for Perfetto."),
    _verb(ask.Replay, "A past run, in the console, at any moment."),
    _verb(
        ask.Compare,
        "Runs side by side: speed, loss, configuration.",
        click.Argument(["runs"], type=RUN, nargs=-1, required=True, metavar="RUN RUN..."),
    ),
    _verb(
        ask.Export,
        "A run's events for other programs.",
        click.Argument(["run"], type=RUN, required=False),
        build=_export,
    ),
    _verb(ask.ReportPage, "A run as one self-contained page."),
    _verb(
        ask.Bench,
        "Measure collectives or strategies.",
        click.Argument(["what"], type=click.Choice(list(BENCHES))),
        build=_bench,
        params=lambda: params_of(ask.Bench) | params_of(ask.BenchCollectives),
        examples=table.VERBS[ask.BenchCollectives].examples,
    ),
    _verb(ask.Prepare, "Install Horovod where it is missing."),
    _verb(ask.Init, "Set up hosts, keys and Python, once.", build=_init),
    _verb(ask.Doctor, "This installation on one page, for a ticket."),
    _verb(
        ask.InstallCompletion,
        "Have your shell complete with Tab.",
        click.Argument(
            ["shell"], required=False, type=click.Choice(ask.COMPLETING_SHELLS), metavar="[SHELL]"
        ),
    ),
    _verb(
        ask.Notify,
        "How a run's end reaches you.",
        click.Argument(["test"], required=False, type=click.Choice(["test"]), metavar="[test]"),
        build=lambda _, given: ask.Notify(test=given["test"] is not None),
    ),
    _verb(
        ask.Trust,
        "Trust a project's configuration.",
        click.Argument(
            ["folder"], default=".", type=click.Path(file_okay=False), metavar="[FOLDER]"
        ),
    ),
    _verb(ask.Demo, "Two nodes on this machine: see a check, a slow rank, a failure."),
)


HELP_CELLS = 120
"""Help is as wide as the terminal, up to here."""


class Commands(Mapping[str, click.Command]):
    """The verbs' commands by name, each made when it is first looked up."""

    def __getitem__(self, name: str) -> click.Command:
        return {verb.name: verb for verb in VERB_COMMANDS}[name].command()

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)


class _Root(click.Group):
    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        return asking.help_option()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        asking.write_verbs(self.commands, formatter)
        asking.write_options(self.get_params(ctx), ctx, formatter)
        examples = (*table.VERBS[ask.Check].examples[:1], *table.VERBS[ask.Run].examples[:1])
        asking.write_end(examples, formatter, of_run=True)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "export" or name not in VERBS:
            from distconsole.grammar.pasting.read import ASSIGNMENT, is_command_line

            exports = len(args) > 1 and bool(ASSIGNMENT.match(args[1]))
            if exports if name == "export" else is_command_line(name):
                args = ["run", "--", *args]
                name = args[0]
        known = self.get_command(ctx, name) is not None or name.startswith("-")
        if not known and not ctx.resilient_parsing:
            from distconsole.grammar.mistakes import meant_verb

            near = meant_verb(name, VERBS)
            hint = f" Did you mean {near!r}?" if near else ""
            raise click.UsageError(f"There is no verb {name!r}.{hint}", ctx)
        return super().resolve_command(ctx, args)


@click.pass_context
def _open(context: click.Context, /, **given: Any) -> ask.Request | None:
    """Check, launch and watch distributed training on machines that you reach over SSH.

    Without a verb the console opens. 'distconsole help VERB' has the options of a verb. RUN is an
    id, a unique prefix, a name, or 'last'.
    """
    verb = context.invoked_subcommand
    if verb is None:
        return ask.OpenConsole(**opening(context, given), where=where(context, given))
    opens = [each.name for each in VERB_COMMANDS if issubclass(each.kind, ask.Opening)]
    for option, name in (("--theme", "theme"), ("--no-startup", "startup")):
        if given[name] is not None and verb not in opens:
            raise click.UsageError(
                f"{option} is of the console, which opens without a verb, or with {', '.join(opens)}.",
                context,
            )
    return None


root = _Root(
    asking.PROGRAM,
    Commands(),  # type: ignore[arg-type]  # only add_command would change it
    invoke_without_command=True,
    no_args_is_help=False,
    callback=_open,
    params=[
        *params_of(ask.Where).values(),
        *params_of(ask.Opening).values(),
        asking.version_option(),
    ],
    help=inspect.getdoc(_open),
    subcommand_metavar="[VERB] [ARGS]...",
    context_settings={"token_normalize_func": asking.dash_words, "max_content_width": HELP_CELLS},
)

VERBS: dict[str, str] = {verb.name: verb.short_help for verb in VERB_COMMANDS}
"""Every verb with a one-line description, in the order of the help."""


def parse_args(
    words: Sequence[str], defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> ask.Request:
    """Return what ``words`` (without the program's name) ask for.

    ``help``, ``help VERB`` and ``version`` ask as ``--help`` and ``--version`` do. Raises UsageError if they
    mean nothing; the hint says what was meant, or where help is.
    """
    if words[:1] in (["help"], ["version"]):
        words = [*words[1:2], "--help"] if words[0] == "help" else ["--version"]
    try:
        request = root.main(
            list(words),
            prog_name=asking.PROGRAM,
            standalone_mode=False,
            default_map={verb: dict(flags) for verb, flags in (defaults or {}).items()},
        )
    except asking.HelpRequested as asked:
        return ask.ShowHelp(str(asked))
    except click.Abort:  # click's word for Ctrl-C
        raise KeyboardInterrupt from None
    except click.UsageError as error:
        from distconsole.grammar.mistakes import usage_error

        raise usage_error(error) from None
    except click.ClickException as error:
        raise UsageError(error.format_message()) from None
    except ValueError as error:  # a path with a NUL or half a character, which no file has
        raise UsageError(f"no file can have such a path: {error}") from None
    assert request is not None
    return request  # type: ignore[no-any-return]


def parse_line(line: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> ask.Request:
    """Return the request of a line of the prompt; raises UsageError for a malformed one."""
    words = line_words(line)
    if not words:
        raise UsageError("the line is empty", "type a verb, or 'help'")
    words = ["help", *words[1:]] if words[0] == "?" else words
    return parse_args(words, defaults)


def parse_untrusted(words: Sequence[str], error: ConfigError) -> ask.Request:
    """Return what ``words`` ask for if no file of ours matters to it; else raises ``error``."""
    with suppress(UsageError):
        request = parse_args(words)
        if not table.verb_of(request).trusts:
            return request
    raise error


def completion_script(shell: str) -> str:
    """Return what ``shell`` reads to complete our lines: it asks this program for each."""
    made = get_completion_class(shell)
    assert made is not None, shell
    text = made(root, {}, asking.PROGRAM, "_DISTCONSOLE_COMPLETE").source()
    # click 8.5.1's fish has no list of hosts, and half of a help text: it cuts values at their commas.
    return text.replace('string split ","', 'string split --max 1 ","')


def shell_complete(vocabulary: Vocabulary) -> None:
    """Answer a shell's completion request (``_DISTCONSOLE_COMPLETE`` is set) and exit."""
    root.main(prog_name=asking.PROGRAM, obj=vocabulary)
