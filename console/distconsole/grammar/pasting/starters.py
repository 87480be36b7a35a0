"""The options of the programs that start distributed jobs, and what each means for the launch.

Which there are, and what becomes of each, stands in ``options.toml``, with its sources.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from distconsole.config.spelling import nearest
from distconsole.errors import UsageError

TAKES, SETS, NOTHING, REFUSED, ASKS, ON = "takes", "sets", "nothing", "refused", "asks", "on"
"""The sections of ``options.toml``."""

STARTERS = {
    "torchrun": "torchrun",
    "accelerate": "accelerate",
    "accelerate-launch": "accelerate",
    "deepspeed": "deepspeed",
    "fabric": "fabric",
    "lightning": "fabric",
    "horovodrun": "horovodrun",
    **dict.fromkeys(("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun"), "mpirun"),
    "srun": "srun",
}
"""By the program's name, its table."""
VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
LOUD_VARIABLE = re.compile(r"\$(?:[A-Z_][A-Z0-9_]*\b|\{[A-Z_][A-Z0-9_]*(?:[^\w.][^}]*)?\})")
COMMAND = re.compile(r"\$\(.*|`.*")
POSITION = re.compile(r"\$[0-9@*#?]|\$\{[0-9@*#].*\}")
"""Shell syntax that is replaced: a variable, the output of a command, the script's own arguments."""


@dataclass(frozen=True, slots=True)
class StarterOption:
    """Effect of an option of another program.

    Attributes:
        values: How many follow it.
        kind: The section that it stands in.
        text: Its meaning, its variable or its reason, by the section.
        only: The values for which that holds, ``otherwise`` for the others; empty for all.
    """

    values: int
    kind: str
    text: str
    only: tuple[str, ...] = ()
    otherwise: StarterOption | None = None

    def of_value(self, value: str) -> StarterOption:
        if not self.only or value in self.only:
            return self
        wrong = f"{value} is no value that is known here | one of {', '.join(self.only)}"
        return self.otherwise or StarterOption(self.values, REFUSED, wrong)


@dataclass(frozen=True, slots=True)
class Starter:
    """A program that starts ranks.

    Attributes:
        options: By name, dashes left and underscores for those within.
        dashes: Whether letters after one dash are options; ``glued``: those that may have a value at them.
        always: Variables that its ranks have in any case.
        on: By an option, variables that are set with it: each one's option and default.
    """

    name: str
    options: Mapping[str, StarterOption]
    dashes: bool
    glued: str
    always: Mapping[str, str]
    on: Mapping[str, Mapping[str, tuple[str, str]]]

    def find(self, name: str) -> StarterOption | None:
        """Return the option called ``name``, also one of which only the beginning is known."""
        begun = (each for each in self.options if each.endswith("*"))
        begin = next((each for each in begun if name.startswith(each[:-1])), "")
        return self.options.get(name) or self.options.get(begin)


@cache
def tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("options.toml").read_text("utf-8"))


@cache
def starter_of(table: str) -> Starter:
    """Return the program of a table of ``options.toml``."""
    told = tables()[table]
    options: dict[str, StarterOption] = {}
    for kind in (TAKES, SETS, NOTHING, REFUSED, ASKS):
        for text, words in told.get(kind, {}).items():
            for name, option in _read_words(kind, text, words):
                before = options.get(name)
                options[name] = replace(before, otherwise=option) if before else option
    on: dict[str, dict[str, tuple[str, str]]] = {}
    for group, variables in told.get(ON, {}).items():
        on[group] = {}
        for variable, word in variables.items():
            name, _, default = word.partition("=")
            on[group][variable] = (name, default)
            options |= {name: StarterOption(1, ON, variable)} if name else {}
    plain = (told.get("dashes", False), told.get("glued", ""), told.get("always", {}))
    return Starter(table, options, *plain, on)


def _read_words(kind: str, text: str, words: str) -> Iterator[tuple[str, StarterOption]]:
    for word in words.split():
        name, equals, only = word.partition("=")
        values = (2 if only == "=" else 1) if equals else 0
        its_text = text.replace("*", name.upper()) if kind == SETS else text
        yield (
            name,
            StarterOption(
                values, kind, its_text, tuple(only.split("|")) if only.strip("=") else ()
            ),
        )


def foreign_word(words: Sequence[str]) -> str:
    """Return the first of ``words`` that mpirun or horovodrun takes as one option, and we as several letters."""
    others = [starter_of(each) for each in ("mpirun", "horovodrun")]
    for word in words:
        name = word.lstrip("-").replace("-", "_")
        if re.fullmatch(r"-[A-Za-z][\w-]+", word) and any(name in each.options for each in others):
            return word
    return ""


@dataclass(frozen=True, slots=True)
class Given:
    """An option that was given: its words, of them the option as it was typed, and its values."""

    option: StarterOption
    words: tuple[str, ...]
    typed: str
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        return _name(self.typed)

    @property
    def value(self) -> str:
        return " ".join(self.values)


def split_options(starter: Starter, words: list[str]) -> tuple[list[Given], list[str]]:
    """Split into options with values and the rest; raises UsageError for unknown options."""
    found: list[Given] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, words[at + 1 :]
        if not word.startswith("-") or word == "-":
            refuse_variable(starter.name, word)
            break
        typed, equals, value = word.partition("=")
        option, glued = _find_option(starter, typed, word)
        if glued or equals:
            found.append(Given(option, (word,), typed[:2] if glued else typed, (glued or value,)))
            at += 1
            continue
        given = tuple(words[at + 1 : at + 1 + option.values])
        unset = next(
            (word for word in given if word.startswith("--") and starter.find(_name(word))), ""
        )
        if len(given) < option.values or unset:
            cure = f"{typed} VALUE" + (
                f"; is a variable in front of {unset} empty?" if unset else ""
            )
            raise UsageError(f"{starter.name} {typed} lacks its value", cure)
        found.append(Given(option, (typed, *given), typed, given))
        at += 1 + option.values
    return found, words[at:]


def _name(typed: str) -> str:
    return typed.partition("=")[0].lstrip("-").replace("-", "_")


def _find_option(starter: Starter, typed: str, word: str) -> tuple[StarterOption, str]:
    name = _name(typed)
    one_dash = typed.startswith("-") and not typed.startswith("--")
    option = starter.find(name)
    if option is not None and (len(name) == 1 or not one_dash or not starter.dashes):
        return option, ""
    letter = starter.options.get(word[1:2])
    if one_dash and word[1:2] in starter.glued and letter is not None:
        return letter, word[2:]
    if name in ("h", "help"):
        raise UsageError(f"{starter.name} {typed} starts no training", "leave it out")
    near = nearest(name, starter.options)
    long = "--" if near and len(near) > 1 else "-"
    raise UsageError(
        f"{starter.name} has no option {typed} that is known here, so what it would change is not known",
        f"did you mean {long}{near.replace('_', '-')}?" if near else "leave it out",
    )


def refuse_variable(what: str, word: str) -> None:
    """Refuse a word that a shell would have replaced: what stands in it is not known here."""
    _refuse_found(what, VARIABLE.search(word) or COMMAND.search(word) or POSITION.fullmatch(word))


def refuse_unreplaced(what: str, script: str, arguments: Sequence[str]) -> None:
    """Refuse a command whose script a shell would have replaced, or an argument that looks so.

    Names in small letters are Hydra's own: ``lr=${base.lr}``.
    """
    refuse_variable(what, script)
    for word in arguments:
        _refuse_found(
            what, LOUD_VARIABLE.search(word) or COMMAND.search(word) or POSITION.fullmatch(word)
        )


def _refuse_found(what: str, found: re.Match[str] | None) -> None:
    if found is None:
        return
    kind = "the command" if found[0].startswith(("$(", "`")) else "the variable"
    raise UsageError(
        f"{what}: nothing has replaced {kind} {found[0]}",
        f"put in what it holds, or paste the command into the shell that sets it: distconsole run -- {what} …",
    )


def split_words(text: str) -> list[str]:
    """Return the words of ``text`` as a shell has them; raises UsageError if a quote is open."""
    try:
        return shlex.split(text.replace("\\\n", " "))
    except ValueError as error:
        raise UsageError(f"the command cannot be split: {error}", "close the quote") from None
