"""Types of the command line: how each reads its text and completes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from distconsole.config.values import convert, size_of
from distconsole.model.names import parse_ranks
from distconsole.model.notices import Way
from distconsole.model.options import Kind, Option
from distconsole.model.requests import SERVICES
from distconsole.model.time_text import parse_since, span_seconds

Name = TypeVar("Name", bound=StrEnum)

NOTHING: Mapping[str, str] = MappingProxyType({})
UNFINISHED_NAME = re.compile(r"[A-Za-z_][\w.]*$")
LEAST_LIMIT = 1 << 20
MAX_MESSAGE_BYTES = 1 << 30


CHECK_GROUPS = (
    *("ssh", "os", "python", "script", "torch", "gpu", "mpi", "horovod", "slurm", "net", "coll"),
    *("clock", "fs"),
)


def check_groups() -> Mapping[str, str]:
    return dict.fromkeys(CHECK_GROUPS, "")


ANY_MOMENTS = {
    **dict.fromkeys(("start", "25%", "50%", "75%", "end"), "of the run"),
    "step 1": "when a rank had first done it, or any other step",
}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What exists right now, for completion: hosts, runs (newest first), ranks, checks, themes.

    Attributes:
        fields: By verb, what its conditions may name and what that is; called when it is wanted.
        checks: Groups and checks with what each catches; called when it is wanted.
        moments: By run (empty for any), what ``--at`` may be and what that is; called when it is wanted.
    """

    hosts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    fields: Callable[[str], Mapping[str, str]] = lambda _: NOTHING
    moments: Callable[[str], Mapping[str, str]] = lambda _: ANY_MOMENTS
    themes: tuple[str, ...] = ("dark", "light", "contrast", "terminal")
    checks: Callable[[], Mapping[str, str]] = check_groups


def vocabulary(context: click.Context) -> Vocabulary:
    known = context.find_object(Vocabulary)
    return known if known is not None else Vocabulary()


def _starting(
    words: Iterable[str], incomplete: str, about: Mapping[str, str] = NOTHING
) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=about.get(word)) for word in words if word.startswith(incomplete)
    ]


def _last_element(
    words: Iterable[str], incomplete: str, about: Mapping[str, str] = NOTHING
) -> list[CompletionItem]:
    """Complete what follows the last comma and a ``user@`` with ``words`` that are not yet in the list."""
    done, comma, last = incomplete.rpartition(",")
    user, at, last = last.rpartition("@")
    taken = {re.sub(r"^.*@|(:[0-9]*)?(/[0-9]*)?$", "", word) for word in done.split(",")}
    left = (word for word in words if word not in taken)
    return [
        CompletionItem(f"{done}{comma}{user}{at}{word}", help=about.get(word))
        for word in left
        if word.startswith(last)
    ]


Offers = Callable[[Vocabulary], Iterable[str]]


class WordChoice(click.Choice[Name]):
    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        return str(choice)


class WordType(click.ParamType):  # type: ignore[type-arg]
    """A word, or a list with commas, that completes with what exists.

    Args:
        read: Converts the text; raises ``ValueError`` with the error.
        about: What some of them mean; None takes it from the vocabulary.
        is_list: Whether its last element is completed.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[str], Any] = str,
        offers: Offers = lambda _: (),
        about: Mapping[str, str] | None = None,
        *,
        is_list: bool = False,
    ) -> None:
        self.name = name
        self._read = read
        self._offers = offers
        self._about = about
        self._is_list = is_list

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value of a text, of a list of texts from a file, or of a converted value."""
        if isinstance(value, tuple):
            if not (self._is_list and value and all(isinstance(each, str) for each in value)):
                return value
            value = ",".join(value)
        try:
            return self._read(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the word; of a list its last element, with those that are not yet in it."""
        known = vocabulary(ctx)
        words = self._offers(known)
        about = {"last": "the newest", **known.about} if self._about is None else self._about
        about = words if isinstance(words, Mapping) else about
        return (_last_element if self._is_list else _starting)(words, incomplete, about)


class ScriptWord(click.types.UnprocessedParamType):
    """A word of a script's or a command's line; completes as a file."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file", starts=True)]


class MomentValue(click.ParamType):  # type: ignore[type-arg]
    name = "TIME"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # An option that still lacks its value leaves what stands before it unread.
        words = (ctx.params.get("run"), *(word for word in ctx.args if word[:1] != "-"), "")
        moments = vocabulary(ctx).moments(next(word for word in words if word is not None))
        return _starting(moments, incomplete, moments)


class ConditionValue(click.ParamType):  # type: ignore[type-arg]
    """A condition; completes the name at its end with the fields of the verb."""

    name = "EXPR"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        start = UNFINISHED_NAME.search(incomplete)
        begun = incomplete[start.start() :] if start else ""
        done = incomplete[: len(incomplete) - len(begun)]
        fields = vocabulary(ctx).fields(ctx.info_name or "")
        return [
            CompletionItem(f"{done}{name}", help=about, shown=name, goes_on=True)
            for name, about in fields.items()
            if name.startswith(begun)
        ]


def split_words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def names_of(names: Sequence[str]) -> WordType:
    noun = type(names[0]).__name__.removesuffix("Name").lower()

    def read(text: str) -> tuple[str, ...]:
        for word in split_words(text):
            if word not in names:
                raise ValueError(f"{word!r} is no {noun}; there are: {', '.join(names)}")
        return tuple(names[names.index(word)] for word in split_words(text))

    return WordType("NAME,…", read, lambda _: names, NOTHING, is_list=True)


def seconds(fewest: float = 0.0) -> WordType:
    """Return the type of a duration, ``10``, ``1.5``, ``90s``, ``2m`` or ``1h30m``, of ``fewest`` seconds or more."""

    def read(text: str) -> float:
        found = span_seconds(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a duration such as 10, 1.5 or 2m")
        if found < fewest:
            raise ValueError(f"{text!r} is too short: at least {fewest:g} s")
        return found

    return WordType("seconds", read)


def _read_pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from None
    return text


def _read_since(text: str) -> str:
    parse_since(text, 0.0)
    return text  # what it means depends on the run


def _read_assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        # The value may be a secret: only the name is repeated.
        raise ValueError(f"{name!r} must be given as NAME=VALUE")
    return name, value


def _reader_of(kind: Kind) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        found = convert(text, kind)
        if found is None:
            raise ValueError(f"{text!r} is not {kind.value}")
        return found

    return read


def _several(name: str, known: Sequence[str], alone: Sequence[str] = ()) -> WordType:
    """Return the type of words of ``known``, or a single one of ``alone``, the last of which means no word."""

    def read(text: str) -> str:
        words = list(dict.fromkeys(split_words(text)))
        for word in words:
            if word not in known and not (word in alone and words == [word]):
                there = known if word in alone else (*known, *alone)
                raise ValueError(f"{word!r} is none of {', '.join(there)}")
        return ",".join(words or alone[-1:])

    return WordType(name, read, lambda _: (*known, *alone), NOTHING, is_list=True)


def _read_loopback(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(?:(.*):)?([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65535:
        raise ValueError(f"{text!r} is not ADDRESS:PORT such as 127.0.0.1:9400")
    named = (match[1] or "127.0.0.1").strip("[]")
    address = {"localhost": "127.0.0.1"}.get(named, named)
    if address != "::1" and not re.fullmatch(r"127(\.[0-9]{1,3}){3}", address):
        raise ValueError(
            f"{named!r} is not this machine's own: only 127.0.0.1, ::1 or localhost listens"
        )
    return address, int(match[2])


def _read_limit(text: str) -> int:
    size = size_of(text)
    if size is None:
        raise ValueError(f"{text!r} is not a size such as 500MB or 8GiB")
    if size < LEAST_LIMIT:
        raise ValueError(f"{text!r} is too little: give at least 1MB")
    return int(size)


def _whole(least: int, most: int | None) -> WordType:
    to = "" if most is None else f" to {most:,}"

    def read(text: str) -> int:
        if not re.fullmatch(r"\d{1,12}", text) or not least <= int(text) <= (most or int(text)):
            raise ValueError(f"{text!r} is not a whole number from {least}{to}")
        return int(text)

    return WordType("integer", read)


def _filled(read: Callable[[str], Any], otherwise: str) -> Callable[[str], Any]:
    """Return ``read``, which refuses a text without any word."""

    def read_filled(text: str) -> Any:
        if not read(text):
            raise ValueError(f"it is empty{otherwise}")
        return read(text)

    return read_filled


def _read_sizes(text: str) -> tuple[int, ...]:
    sizes = []
    for part in split_words(text):
        found = re.fullmatch(r"(\d{1,12})([KMG]?)(?:i?B)?", part, re.IGNORECASE)
        size = int(found[1]) << 10 * " KMG".index(found[2].upper() or " ") if found else 0
        if not 4 <= size <= MAX_MESSAGE_BYTES:
            raise ValueError(f"{part!r} is no size from 4 to 1G, such as 64K")
        sizes.append(size)
    return tuple(dict.fromkeys(sizes))


HOSTS = WordType("LIST", offers=lambda known: known.hosts, is_list=True)
RUN = WordType(
    "run",
    _filled(str, ": a variable that is not set?"),
    offers=lambda known: ("last", *known.runs),
)
CHECK = WordType(
    "ID",
    offers=lambda known: {each: about for each, about in known.checks().items() if "." in each},
)
TYPES: Mapping[Kind, click.ParamType] = {  # type: ignore[type-arg]
    Kind.FILE: click.Path(dir_okay=False),
    Kind.PATH: click.Path(),
    Kind.FOLDER: click.Path(file_okay=False),
    Kind.HOSTS: HOSTS,
    Kind.HOST_LIST: WordType("HOST", offers=lambda known: known.hosts, is_list=True),
    Kind.CLUSTER: WordType("NAME", offers=lambda known: known.clusters),
    Kind.THEME: WordType("NAME", offers=lambda known: known.themes, about=NOTHING),
    Kind.RANKS: WordType("N", parse_ranks, lambda known: known.ranks, is_list=True),
    Kind.PATTERN: WordType("RE", _read_pattern),
    Kind.SINCE: WordType("TIME", _read_since),
    Kind.MOMENT: MomentValue(),
    Kind.CONDITION: ConditionValue(),
    Kind.GROUPS: WordType(
        "GROUP,…",
        _filled(split_words, "; groups are " + " ".join(CHECK_GROUPS)),
        lambda known: known.checks(),
        is_list=True,
    ),
    Kind.PAIRS: WordType("K=V", _read_assignment),
    Kind.NPROC: WordType(
        "N|gpu", _reader_of(Kind.NPROC), lambda _: ("gpu", "1", "2", "4", "8"), NOTHING
    ),
    Kind.NNODES: WordType("N|MIN:MAX", _reader_of(Kind.NNODES)),
    Kind.WAYS: _several("WAY,…", tuple(Way), ("all", "none")),
    Kind.SERVICES: _several("SERVICE,…", SERVICES),
    Kind.LOOPBACK: WordType("127.0.0.1:PORT", _read_loopback),
    Kind.SIZE: WordType("SIZE", _read_limit),
    Kind.SIZES: WordType("SIZE,…", _read_sizes, is_list=True),
}
"""What reads and completes the values of a kind; the name is how they look in the help."""


def type_of(option: Option) -> click.ParamType:  # type: ignore[type-arg]
    match option.kind:
        case Kind.WORDS:
            return names_of(option.choices)
        case Kind.TEXT if option.choices:
            return WordChoice(option.choices)
        case Kind.COUNT | Kind.POSITIVE:
            return _whole(int(option.kind is Kind.POSITIVE), option.most)
        case Kind.SECONDS:
            return seconds(option.least)
        case _:
            return TYPES.get(option.kind, click.STRING)
