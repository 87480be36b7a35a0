"""Options that several verbs have, each said once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.values import (
    ASSIGNMENT,
    CLUSTER,
    HOSTS,
    NODES,
    RANKS_PER_HOST,
    RUN,
    THEME,
    WAYS,
    Choice,
    ConditionValue,
)
from distconsole.model import requests as ask

F = TypeVar("F", bound=Callable[..., Any])


def add_options(command: F, *options: Callable[[F], F]) -> F:
    """Return ``command`` with ``options``, which its help has in this order."""
    for option in reversed(options):
        command = option(command)
    return command


def json_option(command: F) -> F:
    return click.option("--json", "json", is_flag=True, help="Print JSON.")(command)


def condition_options(command: F) -> F:
    return add_options(
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
    option = click.option(
        "--notify",
        metavar="WAY,…",
        type=WAYS,
        help="Tell me of its end, failure and stall by these: bell, desktop, command, webhook; all or none.",
    )
    return option(command)


def run_argument(command: F) -> F:
    return click.argument("run", type=RUN)(command)


def nproc_option(command: F) -> F:
    option = click.option(
        "--nproc",
        metavar="N|gpu",
        type=RANKS_PER_HOST,
        help="Ranks on each host (slots in the host list win).",
    )
    return option(command)


OPENING_OPTIONS = ("theme", "startup")


def opening_options(command: F) -> F:
    return add_options(
        command,
        click.option(
            "--theme",
            type=THEME,
            metavar="NAME",
            help="Of the console: dark, light, contrast, terminal, or Textual's.",
        ),
        click.option(
            "--startup/--no-startup",
            "startup",
            default=None,
            help="Do the lines of the console's start-up file first.  [default: startup]",
        ),
    )


def opening(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of ``given``; what the verb does not say, the group's may."""
    before: dict[str, Any] = context.find_root().params
    own = {name: given.pop(name, None) for name in OPENING_OPTIONS}
    return {name: before.get(name) if said is None else said for name, said in own.items()}


HOST_OPTIONS = ("hosts", "hostfile", "cluster", "ssh_config", "python", "setup")

FILE = click.Path(dir_okay=False)


def host_options(command: F) -> F:
    """Add the options that say which hosts and how to reach them."""
    return add_options(
        command,
        click.option(
            "--hosts",
            metavar="LIST",
            type=HOSTS,
            help="Hosts: [user@]host[:slots][/port],… with ranges such as gpu[01-08,12].",
        ),
        click.option(
            "--hostfile",
            metavar="FILE",
            type=FILE,
            help="Hosts from a file (Open MPI, Horovod, DeepSpeed, MPICH, Slurm or one a line).",
        ),
        click.option(
            "--cluster",
            metavar="NAME",
            type=CLUSTER,
            help="Hosts of a cluster in distconsole.toml.",
        ),
        click.option(
            "--ssh-config",
            metavar="FILE",
            type=FILE,
            help="Read this instead of ~/.ssh/config.",
        ),
        click.option(
            "--python",
            metavar="PATH",
            help="The nodes' interpreter, for agent, checks and ranks.",
        ),
        click.option(
            "--setup", metavar="CMD", help="Run by the node's shell before the interpreter."
        ),
    )


def where(context: click.Context, given: dict[str, Any]) -> ask.Where:
    """Take the host options out of ``given``; what the verb does not say, the group's may.

    Options of a kind that excludes another (``--hosts``, ``--hostfile``, ``--cluster``) given with
    the verb replace those given before it.
    """
    own = {name: given.pop(name, None) for name in HOST_OPTIONS}
    before: dict[str, Any] = context.find_root().params
    names = ("hosts", "hostfile", "cluster")
    # An empty text was given too, most often by a variable that is not set: it names no host.
    chosen = own if any(own[name] is not None for name in names) else before
    if sum(1 for name in names if chosen.get(name) is not None) > 1:
        given_names = " and ".join(f"--{name}" for name in names if chosen.get(name) is not None)
        raise click.UsageError(f"{given_names} exclude each other: give one of them.", context)
    picked = {name: chosen.get(name) for name in names}
    others = {name: own[name] or before.get(name) for name in HOST_OPTIONS if name not in names}
    return ask.Where(**picked, **others)


LAUNCH_OPTIONS = (
    *("launcher", "nproc", "nnodes", "module", "env", "env_file", "workdir", "sync", "pass_args"),
    "nic",
)
"""Their parameters."""


def launch_options(command: F) -> F:
    """Add the options that say what a launch is."""
    return add_options(
        command,
        click.option(
            "--launcher",
            type=Choice(ask.LauncherName),
            default="auto",
            show_default=True,
            help="What the ranks are. torch: env:// ranks; single: one process a node; slurm: torch or single.",
        ),
        nproc_option,
        click.option(
            "--nnodes",
            metavar="N|MIN:MAX",
            type=NODES,
            help="Hosts of the job; with MIN:MAX it goes on while MIN are left (torchrun, elastic Horovod).",
        ),
        click.option("--module", "-m", is_flag=True, help="SCRIPT is a module, as in python -m."),
        click.option(
            "--env",
            metavar="K=V",
            multiple=True,
            type=ASSIGNMENT,
            help="Set in every rank; may be repeated.",
        ),
        click.option(
            "--env-file",
            metavar="FILE",
            type=FILE,
            help="K=V lines, set in every rank; values never appear in argv.",
        ),
        click.option(
            "--workdir",
            metavar="DIR",
            type=click.Path(file_okay=False),
            help="Where the ranks start on the nodes.",
        ),
        click.option(
            "--sync/--no-sync", "sync", default=None, help="Bring the code to the nodes first."
        ),
        click.option(
            "--pass-args",
            type=Choice(ask.PassArgs),
            help="Add --local_rank, or --init_method --rank --world_size, to the arguments.",
        ),
        click.option("--nic", metavar="NAME|auto", help="The training interface on every host."),
    )
