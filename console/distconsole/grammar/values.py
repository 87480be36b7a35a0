"""Words of the command line that are more than text, with how they complete; no meaning is judged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from distconsole.model.moments import parse_since
from distconsole.model.notices import Way
from distconsole.model.ranks import RankSpans, parse_ranks

NOTHING: Mapping[str, str] = MappingProxyType({})


def _no_fields(_verb: str) -> Mapping[str, str]:
    return NOTHING


def _any_moments(_run: str) -> Mapping[str, str]:
    shares = dict.fromkeys(("start", "25%", "50%", "75%", "end"), "of the run")
    return shares | {"step 1": "when a rank had first done it, or any other step"}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What exists right now, for completion: hosts, runs (newest first), ranks, checks, themes.

    Attributes:
        about: What some of these words mean, in a few words.
        fields: By verb, what its conditions may name and what that is; called when it is wanted.
        moments: By run (empty for any), what ``--at`` may be and what that is; called when it is wanted.
    """

    hosts: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    ranks: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    fields: Callable[[str], Mapping[str, str]] = _no_fields
    moments: Callable[[str], Mapping[str, str]] = _any_moments
    themes: tuple[str, ...] = ("dark", "light", "contrast", "terminal")
    checks: tuple[str, ...] = field(
        default=(
            "ssh",
            "os",
            "python",
            "script",
            "torch",
            "gpu",
            "mpi",
            "horovod",
            "slurm",
            "net",
            "coll",
            "clock",
            "fs",
        )
    )


def vocabulary(context: click.Context) -> Vocabulary:
    """Return what the caller of the parser knows to exist."""
    known = context.find_object(Vocabulary)
    return known if known is not None else Vocabulary()


def _starting(
    words: Sequence[str], incomplete: str, about: Mapping[str, str] = NOTHING
) -> list[CompletionItem]:
    return [
        CompletionItem(word, help=about.get(word)) for word in words if word.startswith(incomplete)
    ]


def _last_element(
    words: Iterable[str], incomplete: str, about: Mapping[str, str] = NOTHING
) -> list[CompletionItem]:
    """Complete the element after the last comma with ``words`` that are not yet in the list.

    An element may begin with a user: ``root@gpu01``.
    """
    done, comma, last = incomplete.rpartition(",")
    user, at, last = last.rpartition("@")
    taken = {re.sub(r"^.*@|(:[0-9]*)?(/[0-9]*)?$", "", word) for word in done.split(",")}
    left = (word for word in words if word not in taken)
    return [
        CompletionItem(f"{done}{comma}{user}{at}{word}", help=about.get(word))
        for word in left
        if word.startswith(last)
    ]


class Offering(click.ParamType):  # type: ignore[type-arg]
    """A word, or a list of words with commas, that completes with what is known to exist."""

    is_list = False

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the words, and what some of them mean."""
        raise NotImplementedError

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the word; of a list its last element, with those that are not yet in it."""
        words, about = self.offers(vocabulary(ctx))
        return (_last_element if self.is_list else _starting)(words, incomplete, about)


class HostsValue(Offering):
    """A comma-separated list of hosts."""

    name, is_list = "hosts", True

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the hosts."""
        return known.hosts, known.about


class RunValue(Offering):
    """A run: its id, a unique prefix, its name, or ``last``."""

    name = "run"

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer ``last`` and the runs that exist."""
        return ("last", *known.runs), {"last": "the newest", **known.about}


class ClusterValue(Offering):
    """The name of a cluster in the configuration."""

    name = "cluster"

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the clusters that are configured."""
        return known.clusters, known.about


class CheckValue(Offering):
    """The id of a check."""

    name = "check"

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the ids of checks, which have a dot where they are known."""
        return [check for check in known.checks if "." in check], known.about


class ThemeValue(Offering):
    """The name of a theme of the console."""

    name = "theme"

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the themes that there are."""
        return known.themes, NOTHING


class MomentValue(click.ParamType):  # type: ignore[type-arg]
    """A moment of a past run."""

    name = "moment"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete with moments of the run that the line names, if it does so before."""
        # An option that still lacks its value leaves what stands before it unread.
        words = (ctx.params.get("run"), *(word for word in ctx.args if word[:1] != "-"), "")
        moments = vocabulary(ctx).moments(next(word for word in words if word is not None))
        return _starting(tuple(moments), incomplete, moments)


class RanksValue(Offering):
    """Ranks of a run, ``3`` or ``0-3,8``."""

    name, is_list = "ranks", True

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> RankSpans:
        """Return the first and last rank of each span.

        Raises:
            click.BadParameter: if it is not ranks.
        """
        if isinstance(value, tuple):
            return value
        try:
            return parse_ranks(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the ranks of the run on the screen."""
        return known.ranks, {rank: known.about.get(f"rank {rank}", "") for rank in known.ranks}


class PatternValue(click.ParamType):  # type: ignore[type-arg]
    """A regular expression of Python's."""

    name = "pattern"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was given.

        Raises:
            click.BadParameter: if it is none.
        """
        try:
            re.compile(str(value))
        except (re.error, RecursionError, OverflowError) as error:
            self.fail(f"{value!r} is not a regular expression: {error}", param, ctx)
        return str(value)


class SinceValue(click.ParamType):  # type: ignore[type-arg]
    """A moment, or a span before now."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return it as it was given: what it means depends on the run.

        Raises:
            click.BadParameter: if it is none.
        """
        try:
            parse_since(str(value), 0.0)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class GroupsValue(Offering):
    """Comma-separated groups and check ids, by prefix."""

    name, is_list = "groups", True

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the elements without blanks."""
        if isinstance(value, tuple):
            return value
        return tuple(part.strip() for part in str(value).split(",") if part.strip())

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer groups and checks."""
        return known.checks, known.about


class AssignmentValue(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE`` for the environment of the ranks."""

    name = "K=V"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Return name and value.

        Raises:
            click.BadParameter: if there is no ``=`` or the name is not one a shell could set.
        """
        if isinstance(value, tuple):
            return value
        name, equals, text = str(value).partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # The value may be a secret: only the name is repeated.
            self.fail(f"{name!r} must be given as NAME=VALUE", param, ctx)
        return name, text


_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class SecondsValue(click.ParamType):  # type: ignore[type-arg]
    """A duration in seconds; ``10``, ``1.5``, ``90s``, ``2m`` and ``1h`` are all understood."""

    name = "seconds"

    def __init__(self, fewest: float = 0.0) -> None:
        """Refuse durations that are shorter than ``fewest`` seconds."""
        self._fewest = fewest

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the duration in seconds.

        Raises:
            click.BadParameter: if it is not a duration, or too short a one.
        """
        seconds = value if isinstance(value, float) else self._read(value, param, ctx)
        if seconds < self._fewest:
            self.fail(f"{value!r} is too short: at least {self._fewest:g} s", param, ctx)
        return seconds

    def _read(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a duration such as 10, 1.5 or 2m", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class RanksPerHostValue(Offering):
    """``--nproc``: a positive number, or ``gpu`` for one rank a GPU."""

    name = "N|gpu"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return ``gpu`` or the number as text.

        Raises:
            click.BadParameter: if it is neither.
        """
        text = str(value)
        if text != "gpu" and not re.fullmatch(r"[1-9][0-9]{0,3}", text):
            self.fail(f"{text!r} is neither a positive number nor 'gpu'", param, ctx)
        return text

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the usual answers."""
        return ("gpu", "1", "2", "4", "8"), NOTHING


class NodesValue(click.ParamType):  # type: ignore[type-arg]
    """``--nnodes``: a number of hosts, or the fewest and the most."""

    name = "N|MIN:MAX"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text.

        Raises:
            click.BadParameter: if it is neither, or the fewest are more than the most.
        """
        text = str(value)
        match = re.fullmatch(r"([1-9][0-9]{0,5})(?::([1-9][0-9]{0,5}))?", text)
        if match is None:
            self.fail(f"{text!r} is neither a number of hosts nor MIN:MAX, from 1", param, ctx)
        if match[2] is not None and int(match[1]) > int(match[2]):
            self.fail(f"{text!r} asks for at least {match[1]} and at most {match[2]}", param, ctx)
        return text


class WaysValue(Offering):
    """``--notify``: ways to be told, comma-separated; ``all`` that are configured, or ``none``."""

    name, is_list = "WAY,…", True
    _ALONE = ("all", "none")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the ways as text, each once.

        Raises:
            click.BadParameter: if one is none.
        """
        given = [part.strip() for part in str(value).split(",") if part.strip()]
        words = list(dict.fromkeys(given))
        known = [way.value for way in Way]
        for word in words:
            if word not in known and words != [word]:
                self.fail(f"{word!r} is none of {', '.join(known)}", param, ctx)
            if word not in (*known, *self._ALONE):
                self.fail(f"{word!r} is none of {', '.join((*known, *self._ALONE))}", param, ctx)
        return ",".join(words) or "none"

    def offers(self, known: Vocabulary) -> tuple[Sequence[str], Mapping[str, str]]:
        """Offer the ways."""
        return (*(way.value for way in Way), *self._ALONE), NOTHING


class LoopbackValue(click.ParamType):  # type: ignore[type-arg]
    """``--listen``: a port of this machine that nobody outside it reaches."""

    name = "127.0.0.1:PORT"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return address and port.

        Raises:
            click.BadParameter: if it is none, or an address that others reach.
        """
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(?:(.*):)?([0-9]{1,5})", str(value))
        if match is None or int(match[2]) > 65535:
            self.fail(f"{value!r} is not ADDRESS:PORT such as 127.0.0.1:9400", param, ctx)
        named = (match[1] or "127.0.0.1").strip("[]")
        address = {"localhost": "127.0.0.1"}.get(named, named)
        if address != "::1" and not re.fullmatch(r"127(\.[0-9]{1,3}){3}", address):
            self.fail(
                f"{named!r} is not this machine's own: only 127.0.0.1, ::1 or localhost listens",
                param,
                ctx,
            )
        return address, int(match[2])
