"""The verbs: one short function each, which returns a ``Request`` and does nothing else; those of runs are in ``runs``."""

from __future__ import annotations

from typing import Any

import click

from distconsole.grammar.asking import DIVIDED, DividedVerb, Verb
from distconsole.grammar.bench import bench
from distconsole.grammar.options import (
    FILE,
    condition_options,
    host_options,
    json_option,
    launch_options,
    notify_option,
    opening,
    opening_options,
    where,
)
from distconsole.grammar.runs import (
    attach,
    compare,
    export,
    logs,
    replay,
    report,
    rerun,
    runs,
    show,
    stop,
    why,
)
from distconsole.grammar.target import take_target
from distconsole.grammar.values import (
    CHECK,
    GROUPS,
    HOSTS,
    LIMIT,
    Choice,
    seconds,
)
from distconsole.model import requests as ask

FEWEST_LOST_AFTER_SECONDS = 5.0


@click.command(
    cls=DividedVerb,
    short_help="Judge the hosts: what is wrong, where, and what to type.",
    options_metavar="[OPTIONS] [--]",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--level",
    type=Choice(ask.Level),
    default="standard",
    show_default=True,
    help="How deep.",
)
@click.option(
    "--only",
    metavar="GROUP,…",
    type=GROUPS,
    default=(),
    help="Only these groups or check ids, by prefix.",
)
@click.option("--skip", metavar="GROUP,…", type=GROUPS, default=(), help="All but these.")
@click.option(
    "--budget", "budget_seconds", type=seconds(), help="At most this long, for all of it."
)
@click.option("--strict", is_flag=True, help="Warnings fail.")
@click.option(
    "--details", is_flag=True, help="Also what was seen, whole hints, and the interfaces taken."
)
@click.option(
    "--explain",
    metavar="ID",
    type=CHECK,
    help="Say what a check catches, or a group of them, and stop.",
)
@click.option("--junit", metavar="FILE", type=FILE, help="Also write a JUnit report.")
@click.option(
    "--emit-hostfile", metavar="FILE", type=FILE, help="Also write the hosts that passed."
)
@click.option(
    "--prove/--no-prove",
    "prove",
    default=None,
    help="Try cures: the smallest failing test without and with.  [default: from standard on]",
)
@click.option(
    "--write-profile",
    metavar="[FILE]",
    type=FILE,
    is_flag=False,
    flag_value="",
    help="Put proven cures into distconsole.toml, which run reads.",
)
@json_option
@launch_options
@host_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT|COMMAND] [ARGS]...")
@click.pass_context
def check(context: click.Context, /, explain: str | None, **given: Any) -> ask.Request:
    """Check that these hosts can train together.

    With SCRIPT or COMMAND it is checked for that launch: the script itself, what it imports, its
    arguments and variables, the port, and collectives as it would do them. COMMAND is what starts
    it: python, torchrun, horovodrun, mpirun, srun or distconsole run, with all behind it.

    Groups: ssh os python script torch gpu mpi horovod slurm net coll clock fs
    expect.
    """
    if explain:
        return ask.Explain(check=explain)
    asked = where(context, given)
    target, named = take_target(context, given)
    return ask.Check(where=asked.over(named), target=target, **given)


@click.command(
    cls=DividedVerb,
    short_help="Launch a script on every host and follow it.",
    options_metavar="[OPTIONS] [--]",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@launch_options
@click.option(
    "--max-restarts",
    metavar="N",
    type=click.IntRange(min=0, max=1000),
    help="Restart the job this often.  [default: 0; with --nnodes MIN:MAX as often as a host may be lost]",
)
@click.option(
    "--verify-sync",
    metavar="N",
    type=click.IntRange(min=1),
    help="Every N steps, check that ranks agree.",
)
@click.option(
    "--log-limit",
    metavar="SIZE",
    type=LIMIT,
    help="The most that the ranks' output may take on each host; what is more is dropped.  [default: 1GiB]",
)
@click.option(
    "--store-limit",
    metavar="SIZE",
    type=LIMIT,
    help="The most that the run may take here; then its output is not kept any more.  [default: 4GiB]",
)
@click.option(
    "--slurm",
    metavar="OPTIONS",
    help="Submit a Slurm job with these options of sbatch, and run in it; with any --launcher.",
)
@click.option(
    "--slurm-login",
    metavar="HOST",
    type=HOSTS,
    help="The host that has Slurm's commands, if not this one.",
)
@click.option(
    "--emit",
    type=Choice(ask.EmitKind),
    help="Write the plan as a file for this starter, and stop.",
)
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    type=FILE,
    help="Where --emit writes to; stdout if not given.",
)
@click.option("--name", metavar="NAME", help="A name to find the run by.")
@click.option(
    "--grace",
    "grace_seconds",
    type=seconds(),
    default=10.0,
    help="Seconds between SIGTERM and SIGKILL.  [default: 10]",
)
@click.option(
    "--lost-after",
    "lost_after_seconds",
    type=seconds(FEWEST_LOST_AFTER_SECONDS),
    default=ask.LOST_AFTER_SECONDS,
    help="Seconds without a word from a host until it is given up.  [default: 120]",
)
@click.option(
    "--watch/--no-watch",
    "watch",
    default=True,
    help="Load the hook that counts steps.  [default: watch]",
)
@click.option("--detach", "-d", is_flag=True, help="Start it, print its id, and leave.")
@click.option("--dry-run", "-n", is_flag=True, help="Print what would run on each host, and stop.")
@notify_option
@json_option
@host_options
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(context: click.Context, /, max_restarts: int | None, **given: Any) -> ask.Request:
    """Launch SCRIPT with ARGS on every host and follow it to its end.

    The exit code is that of the rank that failed first. Ctrl-C stops the job on every host; a
    second one kills it, and ends this within 5 seconds. Everything behind SCRIPT is the script's own.
    """
    fewest, most = ask.count_of_hosts(given["nnodes"]) or (0, 0)
    return ask.Run(
        divided=bool(context.meta.get(DIVIDED)),
        max_restarts=most - fewest if max_restarts is None else max_restarts,
        where=where(context, given),
        **given,
    )


@click.command(cls=Verb, short_help="GPUs, processes and load of the hosts, live.")
@click.option("--once", is_flag=True, help="One sample, then stop.")
@click.option(
    "--interval",
    "interval_seconds",
    type=seconds(),
    default=1.0,
    help="Seconds between samples.  [default: 1]",
)
@condition_options
@json_option
@opening_options
@host_options
@click.pass_context
def top(context: click.Context, /, **given: Any) -> ask.Request:
    """Show the GPUs, processes and load of the hosts, with no run.

    Conditions (--where, --fail-if) are about hosts and GPUs: 'util<10', 'user!=me', 'mem>90%'.
    """
    if not given["once"] and (given["only"], given["fail_if"]) != (None, None):
        raise click.UsageError(
            "--where and --fail-if go with --once; in the console 'filter EXPR' does it live.",
            context,
        )
    return ask.Top(**opening(context, given), where=where(context, given), **given)


@click.command(cls=Verb, short_help="Bring what the hosts lack.")
@host_options
@click.option("--yes", "-y", is_flag=True, help="Ask nothing.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@click.option(
    "--source", metavar="FILE", type=FILE, help="Horovod's source archive, in place of an index."
)
@click.option("--rebuild", is_flag=True, help="Also where the Horovod that is there fits.")
@click.pass_context
def setup(context: click.Context, /, **given: Any) -> ask.Request:
    """Bring what the hosts lack: Horovod, built against the torch that is there.

    It is built once for each kind of host, on one of them, and installed into the Python that the
    ranks use (--python) on all that lack it; then checked.
    """
    return ask.Prepare(where=where(context, given), **given)


@click.command(cls=Verb, short_help="How you are told what becomes of a run.")
@click.argument("what", required=False, type=click.Choice(["test"]), metavar="[test]")
def notify(what: str | None) -> ask.Request:
    """Say by which ways you are told of a run's end, failure and stall; with test try them.

    The table [notify] of your configuration says which; --notify of a run which of them.
    """
    return ask.Notify(test=what == "test")


@click.command(cls=Verb, short_help="Take a project's configuration as it is.")
@click.argument(
    "folder", required=False, default=".", type=click.Path(file_okay=False), metavar="[FOLDER]"
)
@click.option("--revoke", is_flag=True, help="Trust it no longer.")
def trust(**given: Any) -> ask.Request:
    """Trust the distconsole.toml of FOLDER, or of where you are, as it is now.

    Keys that can have something executed (python, setup, ssh_config, env …) are taken from it only
    then, and until it is changed.
    """
    return ask.Trust(**given)


@click.command(cls=Verb, short_help="An embedded cluster on this machine: check, then train.")
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(min=1, max=16),
    default=2,
    show_default=True,
    help="Nodes to embed.",
)
@click.option("--headless", is_flag=True, help="Lines instead of the console.")
@opening_options
@json_option
@click.pass_context
def demo(context: click.Context, /, **given: Any) -> ask.Request:
    """Start an embedded cluster on this machine, check it, and train on it."""
    return ask.Demo(**opening(context, given), **given)


VERB_COMMANDS: tuple[click.Command, ...] = (
    check,
    run,
    top,
    runs,
    show,
    attach,
    logs,
    stop,
    rerun,
    why,
    replay,
    compare,
    export,
    report,
    bench,
    setup,
    notify,
    trust,
    demo,
)
