"""The verb ``bench``: words in, a ``Bench`` out. It measures nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import click

from distconsole.grammar.asking import Verb
from distconsole.grammar.hosts import host_options, where
from distconsole.grammar.options import json_option, nproc_option
from distconsole.grammar.values import NOTHING, Offering, SecondsValue, Vocabulary
from distconsole.model import requests as ask

COUNT = click.IntRange(min=1)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
MAX_BYTES = 1 << 30
ENGINES = (ask.LauncherName.TORCH, ask.LauncherName.HOROVOD, ask.LauncherName.MPI)
COLLECTIVES = ("launcher", "ops", "sizes", "budget_seconds")
STRATEGIES = ("only", "skip", "rounds", "images", "batch", "epochs", "width", "precision")
"""Options that only one of the two has."""


class NamesValue(Offering):
    """Comma-separated names of an enumeration.

    Args:
        name: What the values are called.
        names: Those that there are.
        noun: What one of them is.
    """

    is_list = True

    def __init__(self, name: str, names: type[StrEnum], noun: str) -> None:
        self.name = name
        self._names = names
        self._noun = noun

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[StrEnum, ...]:
        """Return the members.

        Raises:
            click.BadParameter: naming the word that is none.
        """
        parts = value if isinstance(value, (tuple, list)) else str(value).split(",")
        words = [str(part).strip() for part in parts]
        known = [name.value for name in self._names]
        for word in words:
            if word not in known:
                there = ", ".join(known)
                self.fail(f"{word!r} is no {self._noun}; there are: {there}", param, ctx)
        return tuple(self._names(word) for word in words)

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the names."""
        return tuple(self._names), NOTHING


STRATEGY_NAMES = NamesValue("strategies", ask.StrategyName, "strategy")
COLLECTIVE_NAMES = NamesValue("ops", ask.CollectiveName, "collective")


class SizesValue(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated sizes in bytes, such as ``4,64K,1M``; K, M and G are powers of 1024."""

    name = "sizes"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the sizes in bytes.

        Raises:
            click.BadParameter: naming the word that is none, or is too large.
        """
        parts = value if isinstance(value, (tuple, list)) else str(value).split(",")
        sizes = []
        for part in parts:
            found = re.fullmatch(r"(\d{1,12})([KMG]?)(?:i?B)?", str(part).strip(), re.IGNORECASE)
            size = int(found[1]) * UNITS[found[2].upper()] if found else 0
            if not 4 <= size <= MAX_BYTES:
                self.fail(f"{str(part)!r} is no size from 4 to 1G, such as 64K", param, ctx)
            sizes.append(size)
        return tuple(dict.fromkeys(sizes))


@click.command(cls=Verb, short_help="Measure collectives or strategies.")
@click.option(
    "--only",
    metavar="NAME,…",
    type=STRATEGY_NAMES,
    default=(),
    help="Only these strategies: " + ", ".join(ask.StrategyName) + ".",
)
@click.option("--skip", metavar="NAME,…", type=STRATEGY_NAMES, default=(), help="All but these.")
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
    type=click.Choice([name.value for name in ask.PrecisionName]),
    default="fp32",
    show_default=True,
    help="What the model computes in.",
)
@click.option(
    "--launcher",
    type=click.Choice([name.value for name in ENGINES]),
    default=ENGINES[0].value,
    show_default=True,
    help="collectives: what starts and carries the ranks.",
)
@click.option(
    "--ops",
    metavar="NAME,…",
    type=COLLECTIVE_NAMES,
    default=(),
    help="collectives: only these of " + ", ".join(ask.CollectiveName) + ".",
)
@click.option(
    "--sizes",
    metavar="SIZE,…",
    type=SizesValue(),
    default=(),
    help="collectives: bytes, such as 4,64K,1M.  [default: 4 to 64M]",
)
@click.option(
    "--budget",
    "budget_seconds",
    metavar="SECONDS",
    type=SecondsValue(),
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
        launcher = ask.LauncherName(given.pop("launcher"))
        return ask.BenchCollectives(where=hosts, launcher=launcher, **given)
    precision = ask.PrecisionName(given.pop("precision"))
    return ask.Bench(what=what, where=hosts, precision=precision, **given)
