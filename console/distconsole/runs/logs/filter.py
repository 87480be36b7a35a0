"""Which printed lines are wanted: by rank, host, stream, words, severity and time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from distconsole.model.ranks import RANKS_PATTERN, RankSpans, in_spans, parse_ranks
from distconsole.model.time_text import parse_since
from distconsole.runs.logs.buffer import BufferedLine, Speaker
from distconsole.runs.logs.levels import LEVEL_WORDS, Level

SEARCHED_CHARS = 16 * 1024
"""What a line has further on is not looked at by regular expressions."""


@dataclass(frozen=True, slots=True)
class LogFilter:
    """Lines that fit all of it; the parts that are empty let everything through.

    Attributes:
        spans: Ranks.
        host: A host's name, or a pattern of the shell's.
        stream: ``out`` or ``err``.
        words: Each must be in the line (its case does not matter), or be the host's name.
        without: None of these may be in the line.
        pattern: Must be found in the line.
        level: The least level.
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
        """Whether any line of ``speaker`` may fit."""
        if self.spans and (speaker.rank is None or not in_spans(speaker.rank, self.spans)):
            return False
        return not self.host or fnmatch.fnmatchcase(speaker.host, self.host)

    def test(self, speakers: Sequence[Speaker]) -> Callable[[BufferedLine], bool]:
        """Return what says of a line whether it fits; ``speakers`` may grow meanwhile."""
        allowed: list[bool] = []
        by_speaker = bool(self.spans or self.host)
        parts = self._parts(speakers)

        def fits(line: BufferedLine) -> bool:
            if by_speaker:
                while len(allowed) <= line.speaker:
                    allowed.append(self.lets(speakers[len(allowed)]))
                if not allowed[line.speaker]:
                    return False
            return all(part(line) for part in parts)

        return fits

    def _parts(self, speakers: Sequence[Speaker]) -> list[Callable[[BufferedLine], bool]]:
        parts: list[Callable[[BufferedLine], bool]] = []
        if self.stream:
            err = self.stream == "err"
            parts.append(lambda line: line.err == err)
        if self.level:
            level = self.level
            parts.append(lambda line: line.level >= level)
        if self.since is not None:
            since = self.since
            parts.append(lambda line: line.t >= since)
        for word in self.words:
            low = word.lower()
            parts.append(
                lambda line, word=word, low=low: (  # type: ignore[misc]
                    low in line.text.lower() or speakers[line.speaker].host == word
                )
            )
        for word in self.without:
            low = word.lower()
            parts.append(lambda line, low=low: low not in line.text.lower())  # type: ignore[misc]
        if self.pattern is not None:
            search = self.pattern.search
            parts.append(lambda line: search(line.text, 0, SEARCHED_CHARS) is not None)
        return parts

    def __bool__(self) -> bool:
        return self != LogFilter()


def parse_filter(text: str, now: float) -> LogFilter:
    """Return the filter that ``text`` means.

    Its words: ``0-3,8`` or ``rank:3``, ``host:gpu*``, ``out`` or ``err``, ``errors``, ``warnings``,
    ``since:10m``, ``/regular expression/``, ``-word`` (lines without it); any other is a word that
    a line has, or a host's name.

    Args:
        now: UNIX seconds, from which ``since`` counts back.

    Raises:
        ValueError: saying which word is wrong.
    """
    given: dict[str, object] = {"text": text.strip()}
    rest = text.strip()
    found = re.search(r"(?:^|\s)/(.+)/(?=\s|$)", rest)
    if found:
        given["pattern"] = parse_pattern(found[1])
        rest = f"{rest[: found.start()]} {rest[found.end() :]}"
    words: list[str] = []
    without: list[str] = []
    for word in rest.split():
        name, colon, value = word.partition(":")
        if RANKS_PATTERN.fullmatch(word):
            given["spans"] = parse_ranks(word)
        elif colon and value and name in _NAMED:
            given.update(_parse_named(name, value, now))
        elif word in ("out", "err"):
            given["stream"] = word
        elif word in LEVEL_WORDS:
            given["level"] = LEVEL_WORDS[word]
        elif word.startswith("-") and len(word) > 1:
            without.append(word[1:])
        else:
            words.append(word)
    return LogFilter(words=tuple(words), without=tuple(without), **given)  # type: ignore[arg-type]


_NAMED = ("rank", "ranks", "host", "stream", "since", "re", "severity", "word")


def _parse_named(name: str, value: str, now: float) -> dict[str, object]:
    match name:
        case "rank" | "ranks":
            return {"spans": parse_ranks(value)}
        case "host":
            return {"host": value}
        case "stream" if value in ("out", "err"):
            return {"stream": value}
        case "since":
            return {"since": parse_since(value, now)}
        case "re":
            return {"pattern": parse_pattern(value)}
        case "severity" if value in LEVEL_WORDS:
            return {"level": LEVEL_WORDS[value]}
        case "word":
            return {"words": (value,)}
        case _:
            raise ValueError(
                f"{name}:{value} is none of stream:out, stream:err, severity:error, severity:warn"
            )


def parse_pattern(text: str) -> re.Pattern[str]:
    """Return the regular expression ``text``; without a capital letter, case does not matter.

    Raises:
        ValueError: if it is none.
    """
    try:
        return re.compile(text, 0 if any(map(str.isupper, text)) else re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"/{text}/ is not a regular expression: {error}") from None
