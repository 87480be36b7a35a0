"""The place up to which a host's journal is stored; it may have lost entries that are stored.

A host that loses its power may lose the end of its journal. It reads its supervisor's events and its
logs once more, under new numbers, in slices that begin and end elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

Body = dict[str, Any]


class JournalPlace(NamedTuple):
    """A place in one host's journal, and how its numbers become those of the store.

    A host that lost the end of its journal gives the numbers again; entries after it are stored under
    higher numbers than their own.

    Attributes:
        seq: Number of the last stored entry, in the host's numbers.
        journal: Its writer; empty if unknown.
        shift: Added to the host's numbers in the store.
        lost_first, lost_last: The entries that the host lost last, as the store has them; 0 for none.
    """

    seq: int = 0
    journal: str = ""
    shift: int = 0
    lost_first: int = 0
    lost_last: int = 0

    def at(self, seq: int, journal: str) -> JournalPlace:
        return self._replace(seq=seq, journal=journal)

    def back_to(self, seq: int) -> JournalPlace:
        last = self.seq + self.shift
        first = min(seq + self.shift + 1, self.lost_first or last)
        return JournalPlace(seq, self.journal, self.shift + self.seq - seq, first, last)


BEGINNING = JournalPlace()
"""Where nothing is known."""


class Retold:
    """The lost entries of one host (``bodies`` as JSON), to recognise those that it sends again."""

    def __init__(self, bodies: Iterable[bytes]) -> None:
        self._printed: dict[tuple[object, object], int] = {}
        """Rank and stream -> offset up to which its log was sent, in bytes."""
        self._steps: dict[object, int] = {}
        self._others: Counter[str] = Counter()
        for each in bodies:
            try:
                self._take(json.loads(each))
            except (ValueError, KeyError, TypeError):
                continue  # damaged on this disk: the host's copy is stored again

    def news_in(self, body: Body) -> Body | None:
        """Return the new part of an entry; None if it has none."""
        kind = body.get("kind")
        if kind == "log":
            known = self._printed.get((body["rank"], body["stream"]), 0) - body["offset"]
            if known <= 0:
                return body
            if known >= _size(body["text"]):
                return None
            rest = body["text"].encode("utf-8", "surrogatepass")[known:].decode("utf-8", "ignore")
            return {**body, "offset": body["offset"] + known, "text": rest}
        if kind == "window":
            known = self._steps.get(body["rank"], -1)
            return None if body["steps"] and body["step"] <= known else body
        key = _key(body)
        if kind == "attempt" and not self._others[key]:
            self._steps.clear()  # the ranks count from 0 again
        if not self._others[key]:
            return body
        self._others[key] -= 1
        return None

    def _take(self, body: Body) -> None:
        match body.get("kind"):
            case "log":
                source = (body["rank"], body["stream"])
                end = body["offset"] + _size(body["text"])
                self._printed[source] = max(end, self._printed.get(source, 0))
            case "window":
                self._steps[body["rank"]] = max(body["step"], self._steps.get(body["rank"], -1))
            case "sample":
                return  # a sample is not repeated
            case _:
                self._others[_key(body)] += 1


def _size(text: str) -> int:
    # Bytes that were no text have come as U+FFFD; too few known bytes repeat one.
    return len(text.encode("utf-8", "surrogatepass")) - 2 * text.count("\N{REPLACEMENT CHARACTER}")


def _key(body: Body) -> str:
    return json.dumps({name: value for name, value in body.items() if name != "seq"})
