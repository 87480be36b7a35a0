"""From a line that means nothing, and what was said of it, to the line that was meant. It asks nobody."""

from __future__ import annotations

import re

MEANT = re.compile(r"did you mean (one of: )?([^?\n]{1,400})\?", re.IGNORECASE)
"""How our own errors and click's tell what may have been meant."""

PARTS = re.compile(r"""[^\s"'=,]+"""), re.compile(r"[A-Za-z_][\w.-]*")
"""Words of a line, and names inside them, as conditions have them."""
LIKENESS = 0.5


def mended(line: str, said: str) -> str | None:
    """Return ``line`` with the word that is meant in place of the wrong one; None if that is not clear.

    Args:
        line: What was asked for.
        said: The error and its hint.
    """
    match = MEANT.search(said)
    if match is None:
        return None
    listed = match[2].split(",") if match[1] else [match[2].partition(",")[0]]
    best: tuple[float, int, int, str] = (LIKENESS, 0, 0, "")
    for meant in (each.strip().strip("'\"") for each in listed):
        for part in (found for parts in PARTS for found in parts.finditer(line[:MAX_LINE])):
            if part[0] != meant and (likeness := _likeness(part[0], meant)) > best[0]:
                best = (likeness, part.start(), part.end(), meant)
    _, start, end, meant = best
    return f"{line[:start]}{meant}{line[end:]}" if meant else None


MAX_LINE = 2000


def _likeness(one: str, other: str) -> float:
    from difflib import SequenceMatcher  # noqa: PLC0415  (5 ms of every start, for those who misspell)

    return SequenceMatcher(None, one[:100].lower(), other[:100].lower()).ratio()
