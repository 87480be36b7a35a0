"""Launches with anything in them that the grammar can say, by the throw of dice."""

import random
from dataclasses import replace
from typing import Any

from distconsole.grammar.drafts import SCRIPT, FieldKind, LaunchField, draft_of, launch_fields
from distconsole.grammar.effects import without_idle_options
from distconsole.grammar.options import HOST_OPTIONS
from distconsole.grammar.pasting.read import starts_ranks
from distconsole.model import requests as ask
from distconsole.model.cluster import TransportName

WORDS = (
    *("a", "train.py", "--epochs=3", "-x", "--", "-", "", "a b", "it's", '"', "\\", "#", "$HOME", "\t", "\n"),
    *("é", "日本", "\u202egpj", "[bold]x[/]", "--nproc", "--no-sync", "\x1b[31m", "K=V", "*", "~", ";rm"),
)  # fmt: skip


def _word(dice: random.Random) -> str:
    return "".join(dice.choice(WORDS) for _ in range(dice.choice((1, 1, 2, 3))))


def any_plain_request(dice: random.Random) -> ask.Run:
    """Return one that the prompt can hold as it is."""
    while True:
        request = any_request(dice)
        if draft_of(request).line().isprintable():
            return request


VALUES: dict[str, tuple[Any, ...]] = {
    "nproc": ("gpu", "1", "16"),
    "ranks": (1, 16),
    "nnodes": ("1", "2:4", "4"),
    "env": (("A", "1"), ("TOKEN", ""), ("_b", "x y='z'"), ("A", "-2")),
    "max_restarts": (0, 1, 2, 1000),
    "grace_seconds": (0.0, 1.5, 10.0, 0.00001, 12345.678),
    "lost_after_seconds": (5.0, 7.5, 120.0, 3600.0, 12345.678),
    "verify_sync": (1, 100),
    "log_limit": (1 << 20, 3 << 30),
    "store_limit": (1 << 20, 1_234_567_890),
    "launcher": tuple(ask.LauncherName),
    "pass_args": tuple(ask.PassArgs),
    "emit": tuple(ask.EmitKind),
    "transport": tuple(TransportName),
    "export": ("wandb", "mlflow,otlp"),
    "notify": ("none", "all", "bell,webhook"),
}
"""Values that an option may have; of any other text one that is a word."""


def _any_value(option: LaunchField, dice: random.Random) -> Any:
    match option.kind:
        case FieldKind.FLAG:
            return True
        case FieldKind.SWITCH:
            return dice.random() < 0.5
        case FieldKind.WORDS:
            known = VALUES.get(option.name)
            count = dice.randrange(4)
            return tuple(dice.choice(known) if known else _word(dice) for _ in range(count))
        case _ if option.name in VALUES:
            return dice.choice(VALUES[option.name])
        case FieldKind.CHOICE:
            raise AssertionError(f"{option.name}: say what requests hold for it")
        case _:
            return _word(dice)


def any_request(dice: random.Random) -> ask.Run:
    scripts = iter(lambda: _word(dice), None)
    request = ask.Run(script=next(word for word in scripts if not starts_ranks((word,))))
    chosen = [each for each in launch_fields() if dice.random() < 0.3 and each.name != SCRIPT]
    hosts = dice.choice(ask.NAMES_OF_HOSTS)
    where: dict[str, Any] = {}
    for each in chosen:
        value = _any_value(each, dice)
        if each.name in ask.NAMES_OF_HOSTS and each.name != hosts:
            continue
        if each.name in HOST_OPTIONS:
            # Not given and given empty is the same for those that name no host.
            where[each.name] = value if each.name in ask.NAMES_OF_HOSTS else value or None
        else:
            request = replace(request, **{each.name: value})
    if request.script.endswith(".py"):  # a file, which is no module
        request = replace(request, module=False)
    divided = request.script.startswith("-") or dice.random() < 0.2
    a_file = request.script.endswith(".py")
    request = replace(
        request, where=ask.Where(**where), divided=divided, module=request.module and not a_file
    )
    return without_idle_options(request)
