"""The verbs about a run that goes on or is over; ``kept`` has those that write one down."""

from __future__ import annotations

from typing import Any

import click

from distconsole.grammar.asking import Verb
from distconsole.grammar.options import (
    FILE,
    condition_options,
    host_options,
    json_option,
    notify_option,
    opening,
    opening_options,
    run_argument,
    where,
)
from distconsole.grammar.values import (
    HOSTS,
    LOOPBACK,
    PATTERN,
    RANKS,
    RUN,
    SINCE,
    Choice,
    MomentValue,
    seconds,
)
from distconsole.model import requests as ask


@click.command(cls=Verb, short_help="Past and present runs.")
@condition_options
@json_option
@host_options
@click.pass_context
def runs(context: click.Context, /, **given: Any) -> ask.Request:
    """List the runs that this machine knows.

    Conditions (--where, --fail-if) are about runs: 'state=failed and age<1d'.
    """
    return ask.Runs(where=where(context, given), **given)


@click.command(cls=Verb, short_help="One run's summary, or its ranks by a condition.")
@condition_options
@json_option
@host_options
@run_argument
@click.pass_context
def show(context: click.Context, /, **given: Any) -> ask.Request:
    """Show how RUN went; with a condition those of its ranks that match.

    \b
    --fail-if 'step_ms.p95_run > 1.1 * median(step_ms.p95_run)'
    exits with 1 if any rank is a tenth slower than the middle one.
    """
    return ask.Show(where=where(context, given), **given)


@click.command(cls=Verb, short_help="Follow a run that is going on.")
@notify_option
@json_option
@opening_options
@host_options
@run_argument
@click.pass_context
def attach(context: click.Context, /, **given: Any) -> ask.Request:
    """Follow RUN from its beginning; ends with the run's exit code. Leaving it never stops it."""
    return ask.Attach(**opening(context, given), where=where(context, given), **given)


@click.command(cls=Verb, short_help="Lines that the ranks printed.")
@click.option(
    "--rank", "ranks", metavar="N", type=RANKS, default=(), help="Only these: 3 or 0-3,8."
)
@click.option("--host", metavar="H", type=HOSTS, help="Only this host; * stands for anything.")
@click.option("--stream", type=click.Choice(["out", "err"]), help="Only stdout, or only stderr.")
@click.option(
    "--grep",
    metavar="RE",
    type=PATTERN,
    help="Only lines with this; small letters match both.",
)
@click.option("--errors", is_flag=True, help="Only errors, with their tracebacks.")
@click.option(
    "--since",
    metavar="TIME",
    type=SINCE,
    help="Only from then on: 10m (before the end, or now), 14:05, 2026-11-22T14:05.",
)
@click.option(
    "--fold/--no-fold", default=False, help="One line for what several ranks say within seconds."
)
@click.option("--follow", "-f", is_flag=True, help="Go on as lines come.")
@click.option(
    "--tail", "-n", metavar="N", type=click.IntRange(min=0), help="Only the last N lines."
)
@host_options
@run_argument
@click.pass_context
def logs(context: click.Context, /, **given: Any) -> ask.Request:
    """Print what the ranks of RUN printed."""
    return ask.Logs(where=where(context, given), **given)


@click.command(cls=Verb, short_help="Stop a run on every host.")
@click.option(
    "--grace",
    "grace_seconds",
    type=seconds(),
    help="Seconds between SIGTERM and SIGKILL; 0 kills at once.",
)
@click.option("--yes", "-y", is_flag=True, help="Ask nothing (only the console's prompt asks).")
@host_options
@run_argument
@click.pass_context
def stop(context: click.Context, /, **given: Any) -> ask.Request:
    """Stop RUN: SIGTERM to every process of it, SIGKILL after the grace period."""
    return ask.Stop(where=where(context, given), **given)


@click.command(cls=Verb, short_help="The same again.")
@click.option(
    "--exclude",
    metavar="HOST",
    type=HOSTS,
    multiple=True,
    help="Without this host; may be repeated.",
)
@click.option("--detach", "-d", is_flag=True, help="Start it, print its id, and leave.")
@notify_option
@json_option
@host_options
@run_argument
@click.pass_context
def rerun(context: click.Context, /, exclude: tuple[str, ...], **given: Any) -> ask.Request:
    """Launch what RUN launched once more."""
    leave_out = tuple(name for words in exclude for name in words.split(",") if name)
    return ask.Rerun(where=where(context, given), exclude=leave_out, **given)


@click.command(cls=Verb, hidden=True, short_help="Where every rank is right now.")
@host_options
@run_argument
@click.pass_context
def why(context: click.Context, /, **given: Any) -> ask.Request:
    """Say where every rank of RUN is, and which one the others wait for."""
    return ask.Why(where=where(context, given), **given)


@click.command(cls=Verb, short_help="A past run, in the console, at any moment.")
@click.option(
    "--at",
    type=MomentValue(),
    metavar="TIME",
    help="From there: 14:05:10, 90s after its start, 40%, 'step 1200'.  [default: its end]",
)
@opening_options
@run_argument
@click.pass_context
def replay(context: click.Context, /, **given: Any) -> ask.Request:
    """Show RUN again, on the console's screens; there 'at', 'play' and 'pause' move through it."""
    return ask.Replay(**opening(context, given), **given)


@click.command(cls=Verb, short_help="Runs side by side: speed, loss, configuration.")
@json_option
@click.argument("runs", type=RUN, nargs=-1, required=True, metavar="RUN RUN...")
def compare(**given: Any) -> ask.Request:
    """Compare two to eight runs with the first of them.

    Says in words which is slower and why, then figures with ratios and what was configured
    otherwise. In the console their curves stand on one axis: step, time or samples.
    """
    return ask.Compare(**given)


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
