"""The verbs: each makes a ``Request`` of what was given and does nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from distconsole.grammar.asking import DIVIDED, DividedVerb, Verb
from distconsole.grammar.options import HOST_OPTIONS, LAUNCH_OPTIONS, opening, params_of, where
from distconsole.grammar.target import take_target
from distconsole.grammar.values import CHECK, RUN
from distconsole.model import requests as ask
from distconsole.model.verbs import VERBS

Given = dict[str, Any]


def _request(kind: type[ask.Request], context: click.Context, given: Given) -> ask.Request:
    """Return the request of ``given``, with what stands before the verb."""
    if issubclass(kind, ask.Opening):
        given |= opening(context, given)
    if issubclass(kind, ask.OnHosts):
        given["where"] = where(context, given)
    return kind(**given)


def _verb(
    kind: type[ask.Request],
    short_help: str,
    *arguments: click.Parameter,
    build: Callable[[click.Context, Given], ask.Request] | None = None,
    params: dict[str, click.Parameter] | None = None,
    hidden: bool = False,
) -> click.Command:
    """Return the verb that makes a kind of request.

    Args:
        arguments: What stands behind its options.
        build: Makes the request of what was given; None for one that holds just that.
        params: In place of those of the request.
    """

    @click.pass_context
    def callback(context: click.Context, /, **given: Any) -> ask.Request:
        return build(context, given) if build is not None else _request(kind, context, given)

    name = VERBS[kind].name.split()[0]
    options = (params_of(kind) if params is None else params).values()
    with_script = kind in (ask.Check, ask.Run)
    return (DividedVerb if with_script else Verb)(
        name,
        params=[*sorted(options, key=lambda each: each.name in HOST_OPTIONS), *arguments],
        callback=callback,
        help=inspect.getdoc(kind),
        short_help=short_help,
        hidden=hidden,
        options_metavar="[OPTIONS] [--]" if with_script else "[OPTIONS]",
        context_settings={"allow_interspersed_args": not with_script},
    )


def _check(context: click.Context, given: Given) -> ask.Request:
    if check := given.pop("explain"):
        return ask.Explain(check=check)
    asked = where(context, given)
    target, named = take_target(context, given)
    return ask.Check(where=asked.over(named), target=target, **given)


def _run(context: click.Context, given: Given) -> ask.Request:
    if context.get_parameter_source("max_restarts") is ParameterSource.DEFAULT:
        fewest, most = ask.count_of_hosts(given["nnodes"]) or (0, 0)
        given["max_restarts"] = most - fewest
    divided = bool(context.meta.get(DIVIDED))
    return ask.Run(divided=divided, where=where(context, given), **given)


def _rerun(context: click.Context, given: Given) -> ask.Request:
    words = given.pop("exclude")
    given["exclude"] = tuple(name for word in words for name in word.split(",") if name)
    return _request(ask.Rerun, context, given)


def _top(context: click.Context, given: Given) -> ask.Request:
    if not given["once"] and (given["only"], given["fail_if"]) != (None, None):
        raise click.UsageError(
            "--where and --fail-if go with --once; in the console 'filter EXPR' does it live.",
            context,
        )
    return _request(ask.Top, context, given)


_OF_FORMAT = {"table": ask.ExportFormat.CSV, "listen": ask.ExportFormat.PROMETHEUS}
"""Options that one format alone has."""


def _export(context: click.Context, given: Given) -> ask.Request:
    asked = ask.Export(where=where(context, given), **given)
    for option, wanted in _OF_FORMAT.items():
        if getattr(asked, option) is not None and asked.format is not wanted:
            raise click.UsageError(f"--{option} goes with --format {wanted}.", context)
    if asked.run is None and asked.format is not ask.ExportFormat.PROMETHEUS:
        raise click.UsageError("Missing argument 'RUN'.", context)
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
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"bench {what} has no --{name.removesuffix('_seconds')}")
        del given[name]
    return _request(BENCHES[what], context, given)


VERB_COMMANDS: tuple[click.Command, ...] = (
    _verb(
        ask.Check,
        "Judge the hosts: what is wrong, where, and what to type.",
        click.Argument(
            ["command"], nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT|COMMAND] [ARGS]..."
        ),
        build=_check,
        params={
            "explain": click.Option(
                ["--explain"],
                metavar="ID",
                type=CHECK,
                help="Say what a check catches, or a group of them, and stop.",
            ),
            **params_of(ask.Check),
            **{name: params_of(ask.Run)[name] for name in LAUNCH_OPTIONS},
        },
    ),
    _verb(
        ask.Run,
        "Launch a script on every host and follow it.",
        click.Argument(["script"]),
        click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED),
        build=_run,
    ),
    _verb(ask.Top, "GPUs, processes and load of the hosts, live.", build=_top),
    _verb(ask.Runs, "Past and present runs."),
    _verb(ask.Show, "One run's summary, or its ranks by a condition."),
    _verb(ask.Attach, "Follow a run that is going on."),
    _verb(ask.Logs, "Lines that the ranks printed."),
    _verb(ask.Stop, "Stop a run on every host."),
    _verb(ask.Rerun, "The same again.", build=_rerun),
    _verb(ask.Why, "Where every rank is right now.", hidden=True),
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
        params=params_of(ask.Bench) | params_of(ask.BenchCollectives),
    ),
    _verb(ask.Prepare, "Bring what the hosts lack."),
    _verb(
        ask.Notify,
        "How you are told what becomes of a run.",
        click.Argument(["test"], required=False, type=click.Choice(["test"]), metavar="[test]"),
        build=lambda _, given: ask.Notify(test=given["test"] is not None),
    ),
    _verb(
        ask.Trust,
        "Take a project's configuration as it is.",
        click.Argument(
            ["folder"],
            required=False,
            default=".",
            type=click.Path(file_okay=False),
            metavar="[FOLDER]",
        ),
    ),
    _verb(ask.Demo, "An embedded cluster on this machine: check, then train."),
)
