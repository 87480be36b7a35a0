"""A list of ways to go on under the view: completions, or lines of the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.text import Text
from textual import events
from textual.message import Message
from textual.widgets import Static

GAP = 2
LEAST_ROWS, MOST_ROWS = 3, 10
LINES_A_ROW = 4
"""Of so many lines of the screen one may be a row of the list."""


class Offer(NamedTuple):
    """One of them: what is chosen, what it means, and which of its letters were looked for."""

    text: str
    help: str = ""
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """What of a list is on the screen.

    Attributes:
        first: The first that is shown.
        count: How many are shown.
        columns: Side by side.
        width: Of each column, in cells.
    """

    first: int
    count: int
    columns: int
    width: int


def page_of(offers: Sequence[Offer], at: int | None, width: int, rows: int) -> Page:
    """Return which of ``offers`` fit into ``rows`` of ``width`` cells, with the one chosen among them."""
    longest = max((Text(offer.text).cell_len for offer in offers), default=1)
    alone = any(offer.help for offer in offers) or any(offer.found for offer in offers)
    columns = 1 if alone else max(1, width // (longest + GAP))
    each = width if alone else min(width, longest + GAP)
    row = 0 if at is None else at // columns
    total = -(-len(offers) // columns)
    first = max(0, min(row - rows + 1, total - rows)) if row >= rows else 0
    return Page(first * columns, min(rows * columns, len(offers) - first * columns), columns, each)


class OfferList(Static):
    """The list; hidden while it is empty."""

    DEFAULT_CSS = """
    OfferList { height: auto; padding: 0 1; background: $surface; display: none; }
    """

    class Chosen(Message):
        """One was clicked."""

        def __init__(self, index: int) -> None:
            super().__init__()
            self.index = index

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id, markup=False)
        self._offers: Sequence[Offer] = ()
        self._at: int | None = None
        self._note = ""
        self._page = Page(0, 0, 1, 1)

    @property
    def columns(self) -> int:
        return self._page.columns

    @property
    def rows(self) -> int:
        return max(LEAST_ROWS, min(MOST_ROWS, self.app.size.height // LINES_A_ROW - 1))

    def show(self, offers: Sequence[Offer], at: int | None, note: str) -> None:
        """Show ``offers``, of which ``at`` is chosen, and a last line about them."""
        self._offers, self._at, self._note = offers, at, note
        self._draw()

    def hide(self) -> None:
        if self._offers or self._note:
            self.show((), None, "")

    def on_resize(self) -> None:
        self._draw()

    def on_click(self, event: events.Click) -> None:
        place = event.get_content_offset(self)
        if place is None:
            return
        column = min(place.x // max(1, self._page.width), self._page.columns - 1)
        index = self._page.first + place.y * self._page.columns + column
        if index < self._page.first + self._page.count:
            self.post_message(self.Chosen(index))

    def _draw(self) -> None:
        self.display = bool(self._offers or self._note)
        if not self.display:
            return
        width = max(1, (self.content_size.width or self.app.size.width - 2))
        page = self._page = page_of(self._offers, self._at, width, self.rows)
        lines = []
        widest = max((Text(offer.text).cell_len for offer in self._offers), default=0)
        for start in range(page.first, page.first + page.count, page.columns):
            line = Text(no_wrap=True, end="")
            for index in range(start, min(start + page.columns, page.first + page.count)):
                line.append_text(self._cell(index, page, min(widest, width // 2)))
            lines.append(line)
        if self._note:
            lines.append(_fit(Text(self._note, style="faint"), width))
        self.update(Text("\n").join(lines))

    def _cell(self, index: int, page: Page, names: int) -> Text:
        offer = self._offers[index]
        text = Text(offer.text, end="")
        for word in offer.found:
            text.highlight_words([word], "accent", case_sensitive=word != word.lower())
        if offer.help:
            text = _fit(text, names)
            text.append("  ")
            text.append(offer.help, style="faint")
        text = _fit(text, page.width - (GAP if page.columns > 1 else 0))
        if index == self._at:
            text.stylize("reverse")
        if page.columns > 1:
            text.append(" " * GAP)
        return text


def _fit(text: Text, width: int) -> Text:
    """Return ``text`` of exactly ``width`` cells."""
    text.truncate(max(1, width), overflow="ellipsis", pad=True)
    return text
