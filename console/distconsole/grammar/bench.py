"""The verb ``bench``: words in, a ``Bench`` out."""

from __future__ import annotations

from typing import Any

import click

from distconsole.grammar.asking import Verb
from distconsole.grammar.options import host_options, json_option, nproc_option, where
from distconsole.grammar.values import SIZES, Choice, names_of, seconds
from distconsole.model import requests as ask

COUNT = click.IntRange(min=1)
ENGINES = (ask.LauncherName.TORCH, ask.LauncherName.HOROVOD, ask.LauncherName.MPI)
COLLECTIVES = ("launcher", "ops", "sizes", "budget_seconds")
STRATEGIES = ("only", "skip", "rounds", "images", "batch", "epochs", "width", "precision")
"""Options that only one of the two has."""


@click.command(cls=Verb, short_help="Measure collectives or strategies.")
@click.option(
    "--only",
    metavar="NAME,…",
    type=names_of(ask.StrategyName, "strategy"),
    default=(),
    help="Only these strategies: " + ", ".join(ask.StrategyName) + ".",
)
@click.option(
    "--skip",
    metavar="NAME,…",
    type=names_of(ask.StrategyName, "strategy"),
    default=(),
    help="All but these.",
)
@click.option(
    "--rounds",
    metavar="N",
    type=COUNT,
    default=3,
    show_default=True,
    help="Runs of each strategy.",
)
@click.option(
    "--epochs", metavar="N", type=COUNT, default=3, show_default=True, help="Epochs of each run."
)
@click.option(
    "--images",
    metavar="N",
    type=click.IntRange(min=1, max=50_000),
    help="Images of an epoch, over all ranks.  [default: 50000 on GPUs, else 512]",
)
@click.option(
    "--batch",
    metavar="N",
    type=COUNT,
    help="Images that a rank reads at once.  [default: 128 on GPUs, else 32]",
)
@click.option(
    "--width",
    metavar="N",
    type=COUNT,
    help="Channels of the network's first stage.  [default: 64 on GPUs, else 16]",
)
@click.option(
    "--precision",
    type=Choice(ask.PrecisionName),
    default="fp32",
    show_default=True,
    help="What the model computes in.",
)
@click.option(
    "--launcher",
    type=Choice(ENGINES),
    default="torch",
    show_default=True,
    help="collectives: what starts and carries the ranks.",
)
@click.option(
    "--ops",
    metavar="NAME,…",
    type=names_of(ask.CollectiveName, "collective"),
    default=(),
    help="collectives: only these of " + ", ".join(ask.CollectiveName) + ".",
)
@click.option(
    "--sizes",
    metavar="SIZE,…",
    type=SIZES,
    default=(),
    help="collectives: bytes, such as 4,64K,1M.  [default: 4 to 64M]",
)
@click.option(
    "--budget",
    "budget_seconds",
    metavar="SECONDS",
    type=seconds(),
    help="collectives: at most this long, for all of it.",
)
@nproc_option
@json_option
@click.argument("what", type=click.Choice(["collectives", "strategies"]))
@host_options
@click.pass_context
def bench(context: click.Context, /, what: str, **given: Any) -> ask.Request:
    """Measure the hosts' collectives, or one model (ResNet-18) under every strategy.

    collectives: every operation from 4 B to 64 MiB, each result verified to the last bit; a table an
    operation with nccl-tests' bandwidths.

    strategies: every strategy that the hosts can run trains on the same generated images, in turns,
    each as an ordinary run; then a table and a chart. Ctrl-C ends it all.
    """
    hosts = where(context, given)
    foreign = STRATEGIES if what == "collectives" else COLLECTIVES
    for name in foreign:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            flag = "--budget" if name == "budget_seconds" else f"--{name}"
            raise click.UsageError(f"bench {what} has no {flag}")
        del given[name]
    if what == "collectives":
        return ask.BenchCollectives(where=hosts, **given)
    return ask.Bench(what=what, where=hosts, **given)
