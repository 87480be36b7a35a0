"""``export`` and ``report``: the verbs that write a run down for others."""

from __future__ import annotations

from typing import Any

import click

from distconsole.grammar.asking import Verb
from distconsole.grammar.hosts import FILE, host_options, where
from distconsole.grammar.options import run_argument
from distconsole.grammar.values import LOOPBACK, RUN, Choice, seconds
from distconsole.model import requests as ask

_OF_FORMAT = {
    "table": ask.ExportFormat.CSV,
    "listen": ask.ExportFormat.PROMETHEUS,
}
"""Options that one format alone has."""


@click.command(cls=Verb, short_help="A run's events for other programs.")
@click.option(
    "--format",
    type=Choice(ask.ExportFormat),
    default="jsonl",
    show_default=True,
    help="What to write.",
)
@click.option(
    "--output",
    "-o",
    metavar="PATH",
    type=click.Path(),
    help="File, or folder for tensorboard and the tables of csv; stdout if not given.",
)
@click.option(
    "--table",
    type=Choice(ask.ExportTable),
    help="csv: this table alone; numbers is every number of the run, one a row.",
)
@click.option("--follow", "-f", is_flag=True, help="Go on with a run until it ends.")
@click.option(
    "--listen",
    metavar="127.0.0.1:PORT",
    type=LOOPBACK,
    help="prometheus: answer there, on this machine alone, until Ctrl-C.",
)
@click.option(
    "--interval",
    "interval_seconds",
    type=seconds(),
    default=5.0,
    help="prometheus: seconds between two writings of PATH.  [default: 5]",
)
@host_options
@click.argument("run", type=RUN, required=False)
@click.pass_context
def export(context: click.Context, /, **given: Any) -> ask.Request:
    """Write RUN as JSON lines, CSV, TensorBoard event files, or for Prometheus.

    --format prometheus without RUN tells of the hosts, as top does.
    """
    asked = ask.Export(where=where(context, given), **given)
    _refuse_nonsense(asked, context)
    return asked


def _refuse_nonsense(asked: ask.Export, context: click.Context) -> None:
    for option, wanted in _OF_FORMAT.items():
        if getattr(asked, option) is not None and asked.format is not wanted:
            raise click.UsageError(f"--{option} goes with --format {wanted}.", context)
    if asked.run is None and asked.format is not ask.ExportFormat.PROMETHEUS:
        raise click.UsageError("Missing argument 'RUN'.", context)
    if asked.format is ask.ExportFormat.TENSORBOARD and asked.output is None:
        raise click.UsageError("--format tensorboard writes a folder: name it with -o.", context)
    if asked.listen is not None and asked.output is not None:
        raise click.UsageError("--listen and -o exclude each other: give one of them.", context)


@click.command(cls=Verb, short_help="A run as one self-contained page.")
@click.option(
    "--output", "-o", metavar="FILE", type=FILE, required=True, help="The page to write."
)
@host_options
@run_argument
@click.pass_context
def report(context: click.Context, /, **given: Any) -> ask.Request:
    """Write RUN, over or going on, as one HTML page that needs no network."""
    return ask.ReportPage(where=where(context, given), **given)
