"""Colours for a terminal; a pipe gets plain words."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from distconsole.model.findings import Severity

_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}

SEVERITY_COLOURS = {"ok": "green", "info": "cyan", "warn": "yellow", "fail": "red"}
"""By the severities' own words: what only prints help need not load the model of findings."""

MARKS = {"ok": "ok  ", "info": "info", "warn": "warn", "fail": "FAIL"}
"""A word beside each colour, so that nothing is said by colour alone."""


@dataclass(frozen=True, slots=True)
class Paint:
    """Paints words, or leaves them as they are."""

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
        """Return the mark of ``severity``, painted."""
        bold = ("bold",) if severity == "fail" else ()
        return self(MARKS[severity], SEVERITY_COLOURS[severity], *bold)
