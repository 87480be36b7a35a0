"""A list of completions or history lines under the view, and a walk through it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

LEAST_ROWS, MOST_ROWS = 3, 10
LINES_A_ROW = 4
"""The list takes at most one in this many lines of the screen."""


class Offer(NamedTuple):
    """The resulting line (a blank may follow if it ``ends``), its text and help in the list, the searched words in it."""

    line: str
    text: str
    help: str = ""
    found: tuple[str, ...] = ()
    ends: bool = False


@dataclass(slots=True)
class Walk:
    """A walk through a list; ``searching`` the history for the text of the line."""

    typed: str
    cursor: int
    offers: Sequence[Offer]
    searching: bool = False
    at: int | None = None

    @property
    def note(self) -> str:
        place = f"{self.at + 1} of " if self.at is not None else ""
        what, way = ("history: ", "^R older") if self.searching else ("", "Tab, arrows choose")
        return f"{what}{place}{len(self.offers)}  ·  {way}  ·  Enter takes  ·  Esc back"

    def place_after(self, by: int, *, around: bool) -> int:
        """Return the place ``by`` further; beyond an end that end, or, ``around``, the other."""
        last = len(self.offers) - 1
        at = by if self.at is None else self.at + by
        if self.at is None or (around and not 0 <= at <= last):
            at = 0 if by > 0 else last
        return max(0, min(last, at))


class OfferList(Static):
    """The list; hidden while it is empty."""

    DEFAULT_CSS = """
    OfferList { height: auto; padding: 0 1; background: $surface; display: none; }
    """

    _offers: Sequence[Offer] = ()
    _at: int | None = None
    _note = ""
    _first = 0

    @dataclass
    class Chosen(Message):
        index: int

    @property
    def rows(self) -> int:
        return max(LEAST_ROWS, min(MOST_ROWS, self.app.size.height // LINES_A_ROW - 1))

    def show(self, offers: Sequence[Offer], at: int | None, note: str) -> None:
        self._offers, self._at, self._note = offers, at, note
        self._draw()

    def hide(self) -> None:
        if self._offers or self._note:
            self.show((), None, "")

    def on_resize(self) -> None:
        self._draw()

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is not None and place.y < len(self._offers[self._first :][: self.rows]):
            self.post_message(self.Chosen(self._first + place.y))

    def _draw(self) -> None:
        self.display = bool(self._offers or self._note)
        if not self.display:
            return
        width = max(1, (self.content_size.width or self.app.size.width - 2))
        widest = max((cell_len(offer.text) for offer in self._offers), default=0)
        self._first = max(0, (self._at or 0) - self.rows + 1)
        shown = self._offers[self._first :][: self.rows]
        lines = [_offer_text(offer, min(widest, width // 2), width) for offer in shown]
        if self._at is not None:
            here = self._at - self._first
            lines[here] = Text(lines[here].plain, style="reverse")
        if self._note:
            lines.append(_fit(Text(self._note, style="faint"), width))
        self.update(Text("\n", no_wrap=True).join(lines))


def _offer_text(offer: Offer, names: int, width: int) -> Text:
    text = Text(offer.text, end="")
    for word in offer.found:
        text.highlight_words([word], "accent", case_sensitive=word != word.lower())
    if offer.help:
        text = _fit(text, names).append("  ").append(offer.help, style="faint")
    return _fit(text, width)


def _fit(text: Text, width: int) -> Text:
    text.truncate(max(1, width), overflow="ellipsis", pad=True)
    return text
