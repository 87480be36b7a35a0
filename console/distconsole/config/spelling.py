"""The most similar known name for a misspelt one."""

from __future__ import annotations

import re
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the one of ``known`` that is most like ``word`` in any case, at least by ``likeness`` (0 to 1), or None."""
    import difflib  # noqa: PLC0415  (5 ms of every start, for those who misspell)

    names = {each.lower(): each for each in known}
    near = difflib.get_close_matches(word.lower(), names, 1, likeness)
    return names[near[0]] if near else None


def suggest(word: str, known: Iterable[str], otherwise: str = "", *, quote: str = "") -> str:
    near = nearest(word, known)
    return f"did you mean {quote}{near}{quote}?" if near else otherwise


def nearest_script(name: str, files: Iterable[str]) -> str:
    """Return the one of ``files`` that ``name``, which may have arguments behind it, means; empty if none is like it."""
    others = {each for each in files if each.isprintable()} - {name}
    first = name.partition(" ")[0]
    return first if first in others else nearest(name, sorted(others)) or ""


MEANT = re.compile(r"did you mean (one of: )?([^?\n]{1,400})\?", re.IGNORECASE)
"""Form of suggestions in our own errors and click's."""

PARTS = re.compile(r"""[^\s"'=,]+"""), re.compile(r"[A-Za-z_][\w.-]*")
"""Words of a line, and names inside them, as conditions have them."""
LIKENESS = 0.5
MAX_LINE = 2000


def mend_line(line: str, said: str) -> str | None:
    """Return ``line`` with the word that is meant in place of the wrong one; None if that is not clear."""
    match = MEANT.search(said)
    if match is None or "`" in match[2]:
        return None
    listed = match[2].split(",") if match[1] else [match[2].partition(",")[0]]
    from difflib import SequenceMatcher  # noqa: PLC0415  (5 ms of every start, for those who misspell)

    best: tuple[float, int, int, str] = (LIKENESS, 0, 0, "")
    for meant in (each.strip().strip("'\"") for each in listed):
        for part in (found for parts in PARTS for found in parts.finditer(line[:MAX_LINE])):
            words = part[0][:100].lower(), meant[:100].lower()
            likeness = SequenceMatcher(None, *words).ratio()
            if part[0] != meant and likeness > best[0]:
                best = (likeness, part.start(), part.end(), meant)
    _, start, end, meant = best
    return f"{line[:start]}{meant}{line[end:]}" if meant else None
