"""The verb ``bench``: words in, a ``Bench`` out. It measures nothing."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from distconsole.grammar.asking import Verb
from distconsole.grammar.hosts import host_options, where
from distconsole.grammar.options import json_option, nproc_option
from distconsole.grammar.values import last_element
from distconsole.model import requests as ask

COUNT = click.IntRange(min=1)


class StrategiesValue(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated strategies; completes its last element."""

    name = "strategies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[ask.StrategyName, ...]:
        """Return the strategies.

        Raises:
            click.BadParameter: naming the word that is none.
        """
        parts = value if isinstance(value, (tuple, list)) else str(value).split(",")
        words = [str(part).strip() for part in parts]
        known = [name.value for name in ask.StrategyName]
        for word in words:
            if word not in known:
                self.fail(f"{word!r} is no strategy; there are: {', '.join(known)}", param, ctx)
        return tuple(ask.StrategyName(word) for word in words)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the element after the last comma with strategies not yet in the list."""
        return last_element(ask.StrategyName, incomplete)


@click.command(cls=Verb, short_help="Measure collectives or strategies.")
@click.option(
    "--only",
    metavar="NAME,…",
    type=StrategiesValue(),
    default=(),
    help="Only these strategies: " + ", ".join(ask.StrategyName) + ".",
)
@click.option(
    "--skip", metavar="NAME,…", type=StrategiesValue(), default=(), help="All but these."
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
    type=click.Choice([name.value for name in ask.PrecisionName]),
    default="fp32",
    show_default=True,
    help="What the model computes in.",
)
@nproc_option
@json_option
@click.argument("what", type=click.Choice(["collectives", "strategies"]))
@host_options
@click.pass_context
def bench(context: click.Context, /, precision: str, **given: Any) -> ask.Request:
    """Measure the hosts' collectives, or one model (ResNet-18) under every strategy.

    strategies: every strategy that the hosts can run trains on the same generated images, in turns,
    each as an ordinary run; then a table and a chart. Ctrl-C ends it all.
    """
    return ask.Bench(where=where(context, given), precision=ask.PrecisionName(precision), **given)
