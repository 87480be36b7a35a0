"""Splits the words of a starter of ranks into its options and the command behind them."""

from __future__ import annotations

import shlex

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError
from distconsole.grammar.pasting.starters import Starter

Meanings = list[tuple[str, str, tuple[str, ...]]]
"""Options given: what it means, as it was typed, and its values."""


def split_options(starter: Starter, words: list[str]) -> tuple[Meanings, list[str]]:
    """Split into options with their values, and what is left from the first word that is none.

    Raises:
        UsageError: for an option that is not known, or lacks its value.
    """
    found: Meanings = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            break
        typed, equals, value = word.partition("=")
        values, meaning, glued = _known(starter, typed, word)
        if glued:
            found.append((meaning, typed, (glued,)))
            at += 1
        elif equals:
            found.append((meaning, typed, (value,)))
            at += 1
        else:
            given = tuple(words[at + 1 : at + 1 + values])
            if len(given) < values:
                raise UsageError(f"{starter.name} {typed} lacks its value", f"{typed} VALUE")
            found.append((meaning, typed, given))
            at += 1 + values
    return found, words[at:]


def _known(starter: Starter, typed: str, word: str) -> tuple[int, str, str]:
    """Return an option's values, its meaning, and the value that is written at it."""
    options = starter.options
    name = typed.lstrip("-").replace("-", "_")
    one_dash = typed.startswith("-") and not typed.startswith("--")
    if name in options and (len(name) == 1 or not one_dash or not starter.dashes):
        return *options[name], ""
    if one_dash and word[1:2] in starter.glued and word[1:2] in options:
        return *options[word[1]], word[2:]
    if "=" in word:
        return 1, "nothing", ""
    near = nearest(name, options)
    long = "--" if near and len(near) > 1 else "-"
    raise UsageError(
        f"{starter.name} has no option {typed} that is known here, so what follows it cannot be told "
        "apart",
        f"did you mean {long}{near.replace('_', '-')}?" if near else "leave it out for the check",
    )


def split_words(text: str) -> list[str]:
    """Return the words of ``text`` as a shell has them.

    Raises:
        UsageError: if a quote is open.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be split: {error}", "close the quote") from None
