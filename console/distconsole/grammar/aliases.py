"""Aliases: short names for lines, with arguments in their places."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from distconsole.config.shortcuts import Alias
from distconsole.config.spelling import suggest
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.options import HOST_OPTIONS
from distconsole.grammar.words import open_line, words_of

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
PLACE = re.compile(r"\$(?:([1-9])|(@)|(\$))")
"""``$1`` to ``$9`` are arguments, ``$@`` is those that no other names, ``$$`` is a dollar."""


def expand_alias(line: str, aliases: Mapping[str, Alias]) -> str:
    """Return ``line`` with its alias as what that stands for; raises UsageError if an argument lacks."""
    alias = aliases.get(_first_word(line))
    return line if alias is None else _fill(alias, line.lstrip())


def _first_word(line: str) -> str:
    """Return the word that ``line`` begins with, without its quotes; nothing for an empty line."""
    return next(iter(open_line(f"{line.lstrip()} ").words), "")


def _fill(alias: Alias, line: str) -> str:
    typed = open_line(f"{line} ")
    spans = typed.spans[1:]
    if not PLACE.search(alias.line):
        rest = line[spans[0][0] :].rstrip() if spans else ""
        return f"{alias.line} {rest}".rstrip()
    wanted = max((int(match[1]) for match in PLACE.finditer(alias.line) if match[1]), default=0)
    has_rest = any(match[2] for match in PLACE.finditer(alias.line))
    if len(spans) < wanted or (len(spans) > wanted and not has_rest):
        count = f"{wanted} argument{'s' if wanted != 1 else ''}" + (" or more" if has_rest else "")
        raise UsageError(
            f"the alias {alias.name} takes {count}, and {len(spans)} were given",
            f"{alias.name} is: {alias.line}",
        )

    def put(match: re.Match[str]) -> str:
        if match[3]:
            return "$"
        if match[1]:
            start, end = spans[int(match[1]) - 1]
            return line[start:end]
        return line[spans[wanted][0] :].rstrip() if len(spans) > wanted else ""

    return PLACE.sub(put, alias.line).strip()


def expand_words(words: Sequence[str], aliases: Mapping[str, Alias]) -> list[str]:
    """As ``expand_alias``, of the words of a shell; options of the program may stand before the alias.

    Raises UsageError as ``expand_alias``, or if what it stands for cannot be split.
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option = words[at].lstrip("-").replace("-", "_")
        at += 2 if option in (*HOST_OPTIONS, "theme") else 1
    if at >= len(words) or words[at] not in aliases:
        return list(words)
    line = expand_alias(shlex.join(words[at:]), aliases)
    try:
        return [*words[:at], *words_of(line)]
    except ValueError as error:
        raise UsageError(f"the alias {words[at]} is no line: {error}", line) from None


def check_aliases(aliases: Mapping[str, Alias], verbs: Sequence[str]) -> None:
    """Refuse aliases without a name of their own or a known verb: a ConfigError with file and line."""
    for alias in aliases.values():
        where = f"{alias.place}: " if alias.place else ""
        trouble = trouble_with(alias.name, alias.line, verbs)
        if trouble is not None:
            raise ConfigError(f"{where}{trouble.message}", trouble.hint)


def trouble_with(name: str, line: str, verbs: Sequence[str]) -> UsageError | None:
    if not NAME.fullmatch(name):
        return UsageError(
            f"{name[:80]!r} cannot be the name of an alias", "letters, digits, - and _, up to 40"
        )
    if name in verbs:
        return UsageError(
            f"'{name}' is a verb, and no alias can take its place",
            f"what it does without flags stands in [{name}] of distconsole.toml",
        )
    word = _first_word(line)
    if word in verbs or word.startswith("-"):
        return None
    return UsageError(
        f"the alias '{name}' begins with '{word[:80]}', which is no verb",
        suggest(word, verbs, "such as: check --level full"),
    )
