"""A launch before it is understood: what each option of ``run`` was given, as text. It judges nothing.

The fields are those of the verb itself, so that an option that ``run`` gets is a field here too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import cache
from typing import Any

import click

from distconsole.grammar.effects import without_idle_options
from distconsole.grammar.mistakes import usage_error
from distconsole.grammar.options import HOST_OPTIONS, METAVARS
from distconsole.grammar.values import type_of
from distconsole.grammar.verbs import parse_line, root
from distconsole.grammar.words import line_words
from distconsole.model import requests as ask
from distconsole.model.options import Kind, Option, options_of

VERB = "run"
SCRIPT, ARGUMENTS = "script", "arguments"
YES, NO = "yes", "no"
DIVIDER = "--"
BLANK = ask.Run("")
DEFAULT_WORDS = re.compile(r"\[default: (.*)\]$")
TRIES = 4
"""Rounds of evaluating a request, as an option's default may follow from another option."""


class FieldKind(StrEnum):
    """Kind of a field's value."""

    TEXT = "text"
    CHOICE = "choice"
    FLAG = "flag"
    """``YES`` or nothing."""
    SWITCH = "switch"
    """``YES``, ``NO`` or nothing."""
    WORDS = "words"
    """Any number of words, written as a shell has them."""


@dataclass(frozen=True, slots=True)
class LaunchField:
    """One option of ``run``, its script or the script's arguments.

    Attributes:
        flag: The option, ``--nproc``; empty for script and arguments.
        metavar: How a value looks, ``N|gpu``; may be empty.
        off: The option that says no, for a switch.
        default: The value of a request that says nothing; may be empty.
    """

    name: str
    flag: str
    kind: FieldKind
    help: str = ""
    metavar: str = ""
    choices: tuple[str, ...] = ()
    off: str = ""
    default: str = ""

    @property
    def label(self) -> str:
        return self.flag.removeprefix("--") or self.name

    @property
    def unsaid(self) -> str:
        """Value without an entry: the default, or the help's words for it."""
        told = DEFAULT_WORDS.search(self.help)
        return self.default or (told[1] if told else "")


@dataclass(frozen=True, slots=True)
class Draft:
    """Entries, by field.

    Attributes:
        given: Values as they were typed, right or wrong; fields that are not here were not given.
        unfinished: By field, words with an open quote.
        divided: A ``--`` stood before the script.
    """

    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unfinished: Mapping[str, str] = field(default_factory=dict)
    divided: bool = False

    def text(self, name: str) -> str:
        if name in self.unfinished:
            return self.unfinished[name]
        values = self.given.get(name, ())
        kind = fields_by_name()[name].kind
        return shlex.join(values) if kind is FieldKind.WORDS else next(iter(values), "")

    def holding(self, name: str, text: str) -> Draft:
        """Return it with ``text`` in the field called ``name``; an empty one takes the option back."""
        values: tuple[str, ...] = (text,) if text else ()
        unfinished = {each: words for each, words in self.unfinished.items() if each != name}
        if fields_by_name()[name].kind is FieldKind.WORDS:
            try:
                values = tuple(shlex.split(text))
            except ValueError:
                values, unfinished[name] = (), text
        return replace(self.giving(name, values), unfinished=unfinished)

    def giving(self, name: str, values: Sequence[str]) -> Draft:
        given = {each: before for each, before in self.given.items() if each != name}
        if name in ask.NAMES_OF_HOSTS and values:
            given = {
                each: before for each, before in given.items() if each not in ask.NAMES_OF_HOSTS
            }
        if values:
            given[name] = tuple(values)
        return replace(self, given=given)

    def line(self) -> str:
        words = [VERB]
        for each in launch_fields():
            if each.name in self.unfinished:
                words.append(f"{each.flag} {self.unfinished[each.name]}".strip())
            else:
                words += map(shlex.quote, self._option(each))
        return " ".join(words)

    def _option(self, option: LaunchField) -> list[str]:
        values = self.given.get(option.name, ())
        if option.name == SCRIPT:
            behind = ARGUMENTS in self.given or ARGUMENTS in self.unfinished
            script = values or (("",) if behind else ())
            dashed = bool(script) and script[0].startswith("-")
            return [DIVIDER, *script] if self.divided or dashed else [*script]
        if option.name == ARGUMENTS:
            return list(values)
        match option.kind:
            case FieldKind.FLAG:
                return [option.flag] if values == (YES,) else []
            case FieldKind.SWITCH:
                return [option.flag if values == (YES,) else option.off] if values else []
            case _:
                return [
                    word
                    for value in values
                    for word in (
                        [f"{option.flag}={value}"]
                        if value.startswith("-")
                        else [option.flag, value]
                    )
                ]


@cache
def launch_fields() -> tuple[LaunchField, ...]:
    """Return every field of ``run``, in the order of a line."""
    options = options_of(ask.Where) | options_of(ask.Run)
    return (
        *(_field(name, option) for name, option in options.items()),
        LaunchField(SCRIPT, "", FieldKind.TEXT, "What every rank runs."),
        LaunchField(ARGUMENTS, "", FieldKind.WORDS, "The script's own, as a shell has them."),
    )


@cache
def fields_by_name() -> dict[str, LaunchField]:
    return {each.name: each for each in launch_fields()}


def read_draft(line: str) -> Draft | None:
    """Return what ``line`` gives, None if not about ``run``; raises UsageError if its words are none."""
    if VERB not in line.split():
        return None
    words = line_words(line)
    try:
        before, rest = _split(root, words)
        if rest[:1] != [VERB]:
            return None
        own, behind = _split(root.commands[VERB], rest[1:])
    except click.UsageError as error:
        raise usage_error(error) from None
    if "help" in own or behind:
        return None
    if not any(name in own for name in ask.NAMES_OF_HOSTS):
        own = {**{name: before[name] for name in ask.NAMES_OF_HOSTS if name in before}, **own}
    own = {
        **{name: value for name, value in before.items() if name not in ask.NAMES_OF_HOSTS},
        **own,
    }
    given = {name: _texts(value) for name, value in own.items() if name in fields_by_name()}
    given = {name: values for name, values in given.items() if values}
    after = 1 + len(given.get(ARGUMENTS, ()))
    divided = len(rest) > after and rest[-after - 1] == DIVIDER
    return Draft(given, divided=divided)


def draft_of(request: ask.Run, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> Draft:
    """Return the draft whose line asks for ``request``, saying only what holds not by itself.

    Args:
        defaults: As for ``parse_line``. A flag or a list that they set cannot be taken back by any
            option; such a request is not met.
    """
    request = without_idle_options(request)
    draft = Draft({SCRIPT: (request.script,)}, divided=request.divided)
    draft = draft.giving(ARGUMENTS, request.arguments)
    for _ in range(TRIES):
        made = parse_line(draft.line(), defaults=defaults)
        assert isinstance(made, ask.Run)
        wrong = [each for each in launch_fields() if _value(made, each) != _value(request, each)]
        if not wrong:
            break
        for each in wrong:
            draft = draft.giving(each.name, _value_words(_value(request, each)))
    return draft


def text_of(request: ask.Run, option: LaunchField) -> str:
    """Return what ``request`` has for an option, as a form shows it; empty for nothing."""
    return " ".join(_value_words(_value(request, option)))


def _field(name: str, option: Option) -> LaunchField:
    flag, kind, off = option.flag(name), FieldKind.TEXT, ""
    if option.kind is Kind.FLAG and getattr(BLANK, name) is False:
        kind = FieldKind.FLAG
    elif option.kind is Kind.FLAG:
        kind, off = FieldKind.SWITCH, f"--no-{name}"
    elif option.kind is Kind.PAIRS:
        kind = FieldKind.WORDS
    elif option.choices:
        kind = FieldKind.CHOICE
    valued = kind in (FieldKind.TEXT, FieldKind.WORDS)
    metavar = option.metavar or METAVARS.get(option.kind) or type_of(option).name.upper()
    metavar = metavar if valued else ""
    made = LaunchField(name, flag, kind, option.help, metavar, option.choices, off)
    return replace(made, default=text_of(BLANK, made))


def _split(command: click.Command, words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    context = click.Context(command, info_name=command.name, **command.context_settings)
    values, rest, _ = command.make_parser(context).parse_args(list(words))
    return values, rest


def _texts(value: Any) -> tuple[str, ...]:
    """Return the words that click's parser has for an option; none of its marks for an option without a value."""
    is_given = isinstance(value, bool | str | Sequence)
    return _value_words(tuple(value) if isinstance(value, list) else value) if is_given else ()


def _value(request: ask.Run, option: LaunchField) -> Any:
    return getattr(request.where if option.name in HOST_OPTIONS else request, option.name)


def _value_words(value: Any) -> tuple[str, ...]:
    match value:
        case None:
            return ()
        case bool():
            return (YES if value else NO,)
        case float():
            whole = value.is_integer()
            return (str(int(value)) if whole else format(Decimal(repr(value)), "f"),)
        case tuple():
            return tuple(each if isinstance(each, str) else "=".join(each) for each in value)
        case _:
            return (str(value),)
