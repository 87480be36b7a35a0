"""The options that say what a launch is, the same for ``run`` and for the check of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from distconsole.grammar.hosts import FILE
from distconsole.grammar.options import nproc_option, with_options
from distconsole.grammar.values import ASSIGNMENT, NODES, Choice
from distconsole.model import requests as ask

F = TypeVar("F", bound=Callable[..., Any])

LAUNCH_OPTIONS = (
    *("launcher", "nproc", "nnodes", "module", "env", "env_file", "workdir", "sync", "pass_args"),
    "nic",
)
"""Their parameters."""


def launch_options(command: F) -> F:
    """Add the options that say what a launch is."""
    return with_options(
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
