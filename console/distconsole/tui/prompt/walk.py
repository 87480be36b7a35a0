"""Ways to go on with a line: a walk through a list of them, and the one that stands grey behind the cursor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from textual.suggester import Suggester

from distconsole.tui.prompt.history import History
from distconsole.tui.widgets.offer_list import Offer

if TYPE_CHECKING:
    from distconsole.tui.prompt.completer import LineCompleter


class Ghost(Suggester):
    """Shows the newest line of the history, else the first completion, behind the cursor."""

    def __init__(self, history: History, completer: Callable[[], LineCompleter]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._history = history
        self._completer = completer

    async def get_suggestion(self, value: str) -> str | None:
        if not value.strip():
            return None
        place = self._history.before(value, len(self._history.lines))
        if place is not None:
            return self._history.lines[place]
        return next((found.line for found in self._completer().glance(value)), None)


@dataclass(slots=True)
class Walk:
    """A walk through a list; ``searching`` where it is what was found, and the line what is looked for."""

    typed: str
    cursor: int
    offers: Sequence[Offer]
    searching: bool = False
    at: int | None = None

    @property
    def note(self) -> str:
        """What stands below the list."""
        place = f"{self.at + 1} of " if self.at is not None else ""
        what, way = ("history: ", "^R older") if self.searching else ("", "Tab, arrows choose")
        return f"{what}{place}{len(self.offers)}  ·  {way}  ·  Enter takes  ·  Esc back"

    def place_after(self, by: int, *, around: bool) -> int:
        """Return the place that is ``by`` further; beyond an end it is that end, or, ``around``, the other."""
        last = len(self.offers) - 1
        at = by if self.at is None else self.at + by
        if self.at is None or (around and not 0 <= at <= last):
            at = 0 if by > 0 else last
        return max(0, min(last, at))


def common_beginning(lines: Sequence[str]) -> str:
    pairs = zip(min(lines), max(lines), strict=False)
    return "".join(letter for letter, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
