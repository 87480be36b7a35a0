"""The options that say which hosts and how to reach them, on every verb that touches hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.options import with_options
from distconsole.grammar.values import CLUSTER, HOSTS
from distconsole.model import requests as ask

F = TypeVar("F", bound=Callable[..., Any])

HOST_OPTIONS = ("hosts", "hostfile", "cluster", "ssh_config", "python", "setup")

FILE = click.Path(dir_okay=False)


def host_options(command: F) -> F:
    """Add the options that say which hosts and how to reach them."""
    return with_options(
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
