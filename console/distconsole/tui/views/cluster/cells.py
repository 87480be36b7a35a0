"""All hosts of a large cluster at a glance: a cell each, in tens, shaded by what it works."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from distconsole.tui.views.cluster.rows import HostRow
from distconsole.tui.widgets.line_widget import LineWidget

MANY_HOSTS = 40
"""From so many hosts on there are cells."""
TEN = 10
SHADES, BOUNDS = "·░▒▓█", (5, 30, 60, 85)
"""Cells by percent, and where the next shade begins."""
LEGEND = "· < 5 %  ░ < 30  ▒ < 60  ▓ < 85  █ more  ✗ lost  ? silent"


class HostCells(LineWidget):
    """One cell a host; a click on it points at the host."""

    DEFAULT_CSS = "HostCells { height: auto; margin-bottom: 1; display: none; }"

    rows: Sequence[HostRow] = ()
    chosen = ""

    @dataclass
    class Pointed(Message):
        """A cell was clicked."""

        host: str

    def show(self, rows: Sequence[HostRow], chosen: str) -> None:
        self.display = len(rows) >= MANY_HOSTS
        resized = len(rows) != len(self.rows)
        self.rows, self.chosen = rows, chosen
        if self.display:
            self.refresh(layout=True) if resized else self.redraw()

    def lines_in(self, width: int) -> int:
        """Return how many lines the hosts take in so many cells."""
        return -(-len(self.rows) // _a_line(width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.lines_in(width)

    def make_line(self, y: int) -> Strip:
        count = _a_line(self.cells)
        cells: list[tuple[str, Style]] = []
        for place, row in enumerate(self.rows[y * count : (y + 1) * count]):
            if place and place % TEN == 0:
                cells.append((" ", self.rich_style))
            sign, meaning = _sign(row)
            style = self.rich_style + self.app.console.get_style(meaning, default="")
            cells.append((sign, style + Style(reverse=row.name == self.chosen)))
        same = groupby(cells, key=itemgetter(1))
        return self.join(
            Segment("".join(sign for sign, _ in alike), style) for style, alike in same
        )

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.x % (TEN + 1) == TEN:
            return
        place = offset.y * _a_line(self.cells) + offset.x - offset.x // (TEN + 1)
        if place < len(self.rows):
            self.post_message(self.Pointed(self.rows[place].name))


def _a_line(width: int) -> int:
    """Return how many hosts stand on a line of so many cells."""
    return max(1, (width + 1) // (TEN + 1)) * TEN


def _sign(row: HostRow) -> tuple[str, str]:
    if row.stale:
        return ("✗", "bad") if row.lost is not None else ("?", "warn")
    level = row.gpu_use if row.gpus else row.node.cpu if row.node else None
    if level is None:
        return "·", "faint"
    return SHADES[bisect_right(BOUNDS, level)], "curve"
