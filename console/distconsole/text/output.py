"""Where words go: a terminal, a pipe or a transcript; their colours, and prose that is broken to a terminal's width."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from distconsole.model.findings import Severity


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEAST_COLUMNS = 40
"""A terminal that is narrower breaks its lines itself."""


_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

SEVERITY_COLOURS = {"ok": "green", "info": "cyan", "warn": "yellow", "fail": "red"}
"""By the severities' own words: what only prints help need not load the model of findings."""

MARKS = {"ok": "ok  ", "info": "info", "warn": "warn", "fail": "FAIL"}
"""A word beside each colour, so that no information is in colour alone."""


@dataclass(frozen=True, slots=True)
class Paint:
    enabled: bool

    @classmethod
    def for_stream(cls, stream: TextIO) -> Paint:
        """Paint if ``stream`` is a terminal and ``NO_COLOR`` (no-color.org) is not set."""
        return cls(
            stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        )

    def __call__(self, text: str, *styles: str) -> str:
        """Return ``text`` in ``styles``."""
        if not self.enabled or not styles:
            return text
        return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"

    def severity(self, severity: Severity) -> str:
        bold = ("bold",) if severity == "fail" else ()
        return self(MARKS[severity], SEVERITY_COLOURS[severity], *bold)


class Output(Protocol):
    """Data, narration and a living status, each with its colours."""

    @property
    def paint_out(self) -> Paint:
        """Colours for data."""

    @property
    def paint_err(self) -> Paint:
        """Colours for narration."""

    @property
    def live(self) -> bool:
        """Whether the status is seen; then no progress lines are needed."""

    @property
    def width(self) -> int | None:
        """Columns of the terminal that shows data; None without one, or if it breaks lines by itself."""

    def data(self, line: str) -> None:
        """A line of data (stdout)."""

    def say(self, line: str) -> None:
        """A line of narration (stderr)."""

    def status(
        self, line: str, *, old_after: float | None = None, seconds: float | None = None
    ) -> None:
        """Set the status line; show its age after ``old_after`` seconds, and count on from ``seconds``."""

    def close(self) -> None:
        """Take the status line away."""


def tell(output: Output, line: str, indent: int = 0) -> None:
    """Print a line of prose with colours as data; in a pipe it stays one; ``indent`` of all but the first."""
    width = output.width
    if width is None or width < LEAST_COLUMNS:
        output.data(line)
        return
    for each in wrap_line(line, width, indent):
        output.data(each)


def wrap_line(line: str, width: int, indent: int = 0) -> list[str]:
    """Return ``line`` as lines of at most ``width`` columns where its words allow it; colours take none."""
    lead = line[: len(line) - len(line.lstrip(" "))]
    lines, held, length = [], lead, len(lead)
    for word in line[len(lead) :].split(" "):
        size = len(COLOUR.sub("", word))
        fresh = not COLOUR.sub("", held).strip()
        if not fresh and length + 1 + size > width:
            lines.append(held)
            held, length, fresh = " " * indent, indent, True
        held += word if fresh else f" {word}"
        length += size if fresh else size + 1
    return [*lines, held]
