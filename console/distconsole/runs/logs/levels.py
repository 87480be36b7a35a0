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
"""The level stands at the beginning of a line."""

_ERROR = re.compile(
    r"^\s*(?:\w+\.)*[A-Z]\w*(?:Error|Exception|Interrupt)(?:$|:)"  # the last line of a traceback
    r"|\b(?:ERROR|CRITICAL|FATAL)\b"
    r"|^\s*(?:\[[^\]]*\]:?\s*)*(?:[Ff]atal|[Ee]rror)\b[^:=]{0,40}:"
    r"|\b(?:Segmentation fault|Bus error|Fatal Python error|Aborted|core dumped|Killed)\b"
    r"|\b(?:CUDA|NCCL|nccl|cuda)[ _]?[Ee]rror\b"
    r"|terminate called"
)
_FRAGMENTS = (
    *("rror", "RROR", "arn", "ARN", "xception", "nterrupt", "atal", "ATAL"),
    *("RITICAL", "fault", "bort", "core", "illed", "terminate"),
)
"""Without one of these neither ``_ERROR`` nor ``_WARN`` matches; they are found in a fraction of the time."""
_WARN = re.compile(r"\bWARN(?:ING)?\b|\bWarning\b|\w+Warning:|^[Ww]arning\b")


class LevelWatch:
    """Judges the lines of each source in their order."""

    def __init__(self) -> None:
        self._tracebacks: set[object] = set()
        """Sources whose last line was of a traceback."""

    def of(self, source: object, text: str) -> Level:
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
        if not any(map(head.__contains__, _FRAGMENTS)):
            return Level.PLAIN
        if _ERROR.search(head):
            return Level.ERROR
        return Level.WARN if _WARN.search(head) else Level.PLAIN
