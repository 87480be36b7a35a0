"""Which printed lines are wanted: by rank, host, stream, words, severity and time."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from distconsole.model.names import RANKS_PATTERN, RankSpans, parse_ranks
from distconsole.model.time_text import parse_since
from distconsole.runs.logs.buffer import BufferedLine, Speaker
from distconsole.runs.logs.levels import LEVEL_WORDS, Level

SEARCHED_CHARS = 16 * 1024
"""Regular expressions see a line up to here."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Lines that fit all of it; the parts that are empty let everything through.

    Attributes:
        host: A host's name, or a pattern of the shell's.
        stream: ``out`` or ``err``.
        words: Each must be in the line (its case does not matter), or be the host's name.
        without: None of these may be in the line.
        since: UNIX seconds.
    """

    spans: RankSpans = ()
    host: str = ""
    stream: str = ""
    words: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    level: Level = Level.PLAIN
    since: float | None = None
    text: str = field(default="", compare=False)
    """How it was asked for."""

    def lets(self, speaker: Speaker) -> bool:
        rank = speaker.rank
        if self.spans and (rank is None or not any(a <= rank <= b for a, b in self.spans)):
            return False
        return not self.host or fnmatch.fnmatchcase(speaker.host, self.host)

    def test(self, speakers: Sequence[Speaker]) -> Callable[[BufferedLine], bool]:
        """Return the test of a line; ``speakers`` may grow meanwhile."""
        allowed: list[bool] = []
        since = -math.inf if self.since is None else self.since
        words = [(word.lower(), word) for word in self.words]
        without = [word.lower() for word in self.without]

        def has_words(line: BufferedLine) -> bool:
            low, host = line.text.lower(), speakers[line.speaker].host
            return all(word in low or name == host for word, name in words) and not any(
                word in low for word in without
            )

        def fits(line: BufferedLine) -> bool:
            while len(allowed) <= line.speaker:
                allowed.append(self.lets(speakers[len(allowed)]))
            return (
                allowed[line.speaker]
                and line.level >= self.level
                and line.t >= since
                and self.stream in ("", "err" if line.err else "out")
                and (not (words or without) or has_words(line))
                and (not self.pattern or bool(self.pattern.search(line.text, 0, SEARCHED_CHARS)))
            )

        return fits

    def __bool__(self) -> bool:
        return self != LogFilter()


def parse_filter(text: str, now: float) -> LogFilter:
    """Return the filter that ``text`` means at ``now`` (UNIX seconds), from which ``since`` counts back.

    Its words: ``0-3,8``, ``host:gpu*``, ``out`` or ``err``, ``errors``, ``warnings``, ``since:10m``,
    ``/regular expression/``, ``-word`` (lines without it); any other is a word that a line has, or a
    host's name. Raises ValueError that names the wrong word.
    """
    given: dict[str, Any] = {"text": text.strip()}
    rest = text.strip()
    found = _PATTERN.search(rest)
    if found:
        given["pattern"] = parse_pattern(found[1])
        rest = f"{rest[: found.start()]} {rest[found.end() :]}"
    words: list[str] = []
    without: list[str] = []
    for word in rest.split():
        name, _, value = word.partition(":")
        if RANKS_PATTERN.fullmatch(word):
            given["spans"] = parse_ranks(word)
        elif name == "host" and value:
            given["host"] = value
        elif name == "since" and value:
            given["since"] = parse_since(value, now)
        elif word in ("out", "err"):
            given["stream"] = word
        elif word in LEVEL_WORDS:
            given["level"] = LEVEL_WORDS[word]
        elif word.startswith("-") and len(word) > 1:
            without.append(word[1:])
        else:
            words.append(word)
    return LogFilter(words=tuple(words), without=tuple(without), **given)


_PATTERN = re.compile(r"(?:^|\s)/(.+)/(?=\s|$)")


def exchange_word(text: str, kind: re.Pattern[str], word: str) -> str:
    """Return the filter ``text`` with ``word`` in the place of all that are of a ``kind``; a regular expression stays."""
    found = _PATTERN.search(text)
    rest, pattern = _PATTERN.sub("", text), found[0].strip() if found else ""
    kept = [each for each in rest.split() if not kind.fullmatch(each)]
    return " ".join(filter(None, [word, *kept, pattern]))


def parse_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression ``text``, without capitals in any case; raises ValueError."""
    try:
        return re.compile(text, 0 if any(map(str.isupper, text)) else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"/{text}/ is not a regular expression: {error}") from None
