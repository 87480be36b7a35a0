"""How bad a printed line is, from its words alone: Python's tracebacks, loggers, NCCL, the C runtime."""

from __future__ import annotations

import re
from enum import IntEnum


class Level(IntEnum):
    """How bad a line is, worst last; ``PART`` is a further line of a traceback, so that a traceback is one error."""

    PLAIN = 0
    WARN = 1
    PART = 2
    ERROR = 3


LEVEL_WORDS = {
    "warn": Level.WARN,
    "warnings": Level.WARN,
    "error": Level.PART,
    "errors": Level.PART,
}
"""Word of a filter -> the least level that it lets through."""

_TRACEBACK = "Traceback (most recent call last)"

_CHAINED = (
    "During handling of the above exception, another",
    "The above exception was the direct cause",
)

HEAD_CHARS = 400
"""What a line is, it says at its beginning."""

_ERROR = re.compile(
    r"^\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:$|:)"  # the last line of a traceback
    r"|\b(?:ERROR|CRITICAL|FATAL)\b"
    r"|^\s*(?:\[[^\]]*\]:?\s*)*(?:[Ff]atal|[Ee]rror)\b[^:=]{0,40}:"
    r"|\b(?:Segmentation fault|Bus error|Fatal Python error|Aborted|core dumped|Killed)\b"
    r"|\b(?:CUDA|NCCL|nccl|cuda)[ _]?[Ee]rror\b"
    r"|terminate called"
)
_WARN = re.compile(r"\bWARN(?:ING)?\b|\bWarning\b|\w+Warning:|^[Ww]arning\b")


class LevelWatch:
    """Judges the lines of each source in their order."""

    def __init__(self) -> None:
        self._tracebacks: set[object] = set()
        """Sources whose last line was of a traceback."""

    def of(self, source: object, text: str) -> Level:
        """Return how bad ``text``, the next line of ``source``, is."""
        if text.startswith("[rank"):  # torch puts the rank before each line of a traceback
            text = text.partition("]: ")[2] or text
        if self._tracebacks and source in self._tracebacks:
            if not text or text[0] in " \t" or _TRACEBACK in text:
                return Level.PART
            self._tracebacks.discard(source)
            if _ERROR.search(text[:HEAD_CHARS]):
                return Level.PART
        return self._alone(source, text)

    def _alone(self, source: object, text: str) -> Level:
        if _TRACEBACK in text:
            self._tracebacks.add(source)
            return Level.ERROR
        if text.startswith(_CHAINED):
            self._tracebacks.add(source)
            return Level.PART
        head = text[:HEAD_CHARS]
        if not _may_be_bad(head):
            return Level.PLAIN
        if _ERROR.search(head):
            return Level.ERROR
        return Level.WARN if _WARN.search(head) else Level.PLAIN


def _may_be_bad(text: str) -> bool:
    """Whether ``_ERROR`` or ``_WARN`` may match: substrings are found in a quarter of their time."""
    return (
        "rror" in text
        or "RROR" in text
        or "arn" in text
        or "ARN" in text
        or "xception" in text
        or "nterrupt" in text
        or "atal" in text
        or "ATAL" in text
        or "RITICAL" in text
        or "fault" in text
        or "bort" in text
        or "core" in text
        or "illed" in text
        or "terminate" in text
    )
