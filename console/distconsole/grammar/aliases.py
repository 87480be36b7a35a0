"""Short names for lines: what each stands for, with its arguments in their places. It does none of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from distconsole.config.shortcuts import Alias
from distconsole.config.spelling import nearest
from distconsole.errors import ConfigError, UsageError
from distconsole.grammar.hosts import HOST_OPTIONS
from distconsole.grammar.words import open_line, words_of

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
PLACE = re.compile(r"\$(?:([1-9])|(@)|(\$))")
"""``$1`` to ``$9`` are arguments, ``$@`` is those that no other names, ``$$`` is a dollar."""


def expanded(line: str, aliases: Mapping[str, Alias]) -> str:
    """Return ``line`` with the alias that it begins with as what that stands for.

    Raises:
        UsageError: if an argument is lacking, or the alias leads back to itself.
    """
    used: list[str] = []
    while True:
        alias = aliases.get(_first_word(line))
        if alias is None:
            return line
        _refuse_again(alias.name, used)
        used.append(alias.name)
        line = _filled(alias, line.lstrip())


def refuse_loop(name: str, aliases: Mapping[str, Alias]) -> None:
    """See to it that the alias called ``name`` stands for something, whatever its arguments are.

    Raises:
        UsageError: if it leads back to itself.
    """
    used: list[str] = []
    while name in aliases:
        _refuse_again(name, used)
        used.append(name)
        name = _first_word(aliases[name].line)


def _refuse_again(name: str, used: Sequence[str]) -> None:
    if name in used:
        way = " → ".join((*used, name))
        raise UsageError(f"the alias {used[0]} leads back to itself: {way}", "see 'alias'")


def _first_word(line: str) -> str:
    """Return the word that ``line`` begins with, without its quotes; nothing for an empty line."""
    return next(iter(open_line(f"{line.lstrip()} ").words), "")


def _filled(alias: Alias, line: str) -> str:
    """Return what ``alias`` stands for, with the arguments as they were typed."""
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


def expanded_words(words: Sequence[str], aliases: Mapping[str, Alias]) -> list[str]:
    """As ``expanded``, of the words of a shell; options of the program may stand before the alias.

    Raises:
        UsageError: as ``expanded``, or if what it stands for cannot be split.
    """
    at = 0
    while at < len(words) and words[at].startswith("-"):
        option = words[at].lstrip("-").replace("-", "_")
        at += 2 if option in (*HOST_OPTIONS, "theme") else 1
    if at >= len(words) or words[at] not in aliases:
        return list(words)
    line = expanded(shlex.join(words[at:]), aliases)
    try:
        return [*words[:at], *words_of(line)]
    except ValueError as error:
        raise UsageError(f"the alias {words[at]} is no line: {error}", line) from None


def checked(aliases: Mapping[str, Alias], verbs: Sequence[str]) -> None:
    """See to it that every alias has a name of its own and begins with something that exists.

    Raises:
        ConfigError: naming the file and the line.
    """
    for alias in aliases.values():
        where = f"{alias.place}: " if alias.place else ""
        trouble = trouble_with(alias.name, alias.line, verbs, aliases)
        if trouble is not None:
            raise ConfigError(f"{where}{trouble.message}", trouble.hint)
        try:
            refuse_loop(alias.name, aliases)
        except UsageError as error:
            raise ConfigError(f"{where}{error.message}", "change one of them") from None


def trouble_with(
    name: str, line: str, verbs: Sequence[str], aliases: Mapping[str, Alias]
) -> UsageError | None:
    """Return what is wrong with an alias, or None."""
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
    known = (*verbs, *aliases)
    if (word in known or word.startswith("-")) and word != name:
        return None
    near = nearest(word, [each for each in known if each != name]) if word else None
    return UsageError(
        f"the alias '{name}' begins with '{word[:80]}', which is no verb",
        f"did you mean {near}?" if near else "such as: check --level full",
    )
