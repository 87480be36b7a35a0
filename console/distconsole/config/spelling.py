"""What somebody who misspelt a name may have meant. It knows no names itself."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], likeness: float = 0.5) -> str | None:
    """Return the one of ``known`` that is most like ``word``; None if none is.

    Args:
        likeness: The least that counts, from 0 to 1 for the same word.
    """
    import difflib  # noqa: PLC0415  (5 ms of every start, for those who misspell)

    return next(iter(difflib.get_close_matches(word, list(known), 1, likeness)), None)
