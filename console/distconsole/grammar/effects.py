"""Refuses options that have no effect in a request, because another option is missing or excludes them.

What changes nothing that is asked for is let be: ``--dry-run`` shows the plan of a whole line, whatever else stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, NamedTuple

import click

from distconsole.errors import UsageError
from distconsole.grammar.asking import is_typed
from distconsole.model import requests as ask
from distconsole.model.options import options_of
from distconsole.model.verbs import Opens, verb_of


class Effect(NamedTuple):
    """Requests (``where``) in which options have an effect, and the note on one without."""

    options: tuple[str, ...]
    where: Callable[[Any], bool]
    says: str


CONSOLE = Effect(
    ("theme", "startup"),
    lambda request: verb_of(request).opens is not Opens.NEVER,
    "is of the console, which does not open here",
)
NOTICE = Effect(
    ("notify",),
    lambda request: not request.detach or request.notify in (None, "node", "all", "none"),
    "goes without --detach, which leaves nobody but the node to tell it (--notify node)",
)
EFFECTS: Mapping[type, tuple[Effect, ...]] = {
    ask.Check: (
        Effect(
            ("write_profile",),
            lambda check: check.prove is not False,
            "writes cures that were proven: it goes without --no-prove",
        ),
    ),
    ask.Explain: (
        Effect(
            tuple(options_of(ask.Check)),
            lambda _: False,
            "goes without --explain, which says what a check is and stops",
        ),
    ),
    ask.Run: (
        Effect(("output",), lambda run: run.emit is not None, "goes with --emit"),
        Effect(("slurm_login",), lambda run: run.slurm is not None, "goes with --slurm"),
        Effect(
            ("verify_sync",), lambda run: run.watch, "needs the hook: it goes without --no-watch"
        ),
        Effect(
            ("export",),
            lambda run: not run.detach,
            "goes without --detach; export RUN --follow does it from here",
        ),
        NOTICE,
    ),
    ask.Rerun: (NOTICE,),
    ask.Top: (
        CONSOLE,
        Effect(
            ("only", "fail_if"),
            lambda top: top.once,
            "goes with --once; in the console 'filter EXPR' does it live",
        ),
        Effect(("interval_seconds",), lambda top: not top.once, "goes without --once"),
    ),
    ask.Attach: (CONSOLE,),
    ask.Watch: (CONSOLE,),
    ask.Why: (
        Effect(
            ("job", "pid"), lambda why: not why.run, "is of jobs on hosts: it goes without RUN"
        ),
    ),
    ask.Demo: (CONSOLE,),
    ask.Export: (
        Effect(
            ("table",),
            lambda export: export.format is ask.ExportFormat.CSV,
            f"goes with --format {ask.ExportFormat.CSV}",
        ),
        Effect(
            ("listen",),
            lambda export: export.format is ask.ExportFormat.PROMETHEUS,
            f"goes with --format {ask.ExportFormat.PROMETHEUS}",
        ),
        Effect(
            ("output",),
            lambda export: export.format is not ask.ExportFormat.OTLP,
            "goes without --format otlp, which sends to OTEL_EXPORTER_OTLP_ENDPOINT",
        ),
        Effect(
            ("interval_seconds",),
            lambda export: export.format in (ask.ExportFormat.PROMETHEUS, ask.ExportFormat.OTLP),
            f"goes with --format {ask.ExportFormat.PROMETHEUS} or {ask.ExportFormat.OTLP}",
        ),
        Effect(
            ("interval_seconds",), lambda export: export.goes_on, "goes with --follow or --listen"
        ),
    ),
    ask.Doctor: (
        Effect(
            ("python", "setup", "container"),
            lambda doctor: doctor.where.names_hosts,
            "is about hosts: name them, too, such as --hosts gpu1,gpu2",
        ),
    ),
}


def refuse_idle_options(request: ask.Request, context: click.Context) -> None:
    """Raise UsageError if an option was typed that has no effect in ``request``; the configuration may have it."""
    params = {param.name: param for param in context.command.params}
    for name, says in _idle_options(request):
        if is_typed(context, name):
            flag = max(params[name].opts, key=len)
            error = UsageError(f"{flag} {says}", f"see '{context.command_path} --help'")
            error.option = name
            raise error


def without_idle_options(request: ask.Run) -> ask.Run:
    defaults: dict[str, Any] = {each.name: each.default for each in fields(request)}
    return replace(request, **{name: defaults[name] for name, _ in _idle_options(request)})


def _idle_options(request: ask.Request) -> list[tuple[str, str]]:
    effects = [each for each in EFFECTS.get(type(request), ()) if not each.where(request)]
    return [(name, effect.says) for effect in effects for name in effect.options]
