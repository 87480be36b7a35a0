"""Plots in their panels, side by side; in two rows where nothing else needs the lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import ceil
from typing import TypeVar

from textual.containers import Horizontal
from textual.content import Content

from distconsole.tui.theme.themes import ROLES
from distconsole.tui.widgets.curves import PlotData
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plot import Plot

Shown = TypeVar("Shown")
MOST_ROWS = 10
"""Rows of a plot, axis and labels among them, where others need the room: more say little that these do not."""
MANY = 4
"""So many plots stand in two rows rather than in one."""
GOOD_CELLS = 50
"""Cells of a plot where there are more than two."""
SAID_STYLES = {name: f"${variable}" for name, (variable, _) in ROLES.items()}
"""Meanings of words in a border, which Textual draws."""


def spread(spare: int, frame: int, known: int, height: int) -> tuple[int, int]:
    """Return in how many rows ``known`` plots stand in ``spare`` lines that nobody else needs, and how many they take.

    Args:
        frame: Lines that the frame of a panel takes.
        height: Lines of the whole view: on a tall one plots are taller.
    """
    rows = 2 if known >= MANY and spare >= 2 * (frame + MOST_ROWS) else 1
    return rows, min(spare, rows * (frame + max(MOST_ROWS, height // 4)))


class PlotPanel(Panel):
    """A plot in its panel: what it shows is the title, its figures of now the state."""

    def __init__(self, keys: str = "", id: str | None = None) -> None:  # noqa: A002
        self.plot = Plot()
        super().__init__("", self.plot, keys=keys, id=id)

    def show(self, data: PlotData) -> None:
        self.plot.show(data)
        said = [
            Content.styled(words, SAID_STYLES.get(style, "$foreground"))
            for words, style in data.said
        ]
        if self.plot.beyond:
            said.insert(0, Content.styled(self.plot.beyond, "$text-warning"))
        legend = [data.legend] if data.legend else []
        if any(len(curve.xs) for curve in data.curves) and data.smooth:
            legend = ["━ mean  ░ lowest to highest rank"]
        self.entitle(data.title, Content("  ").join(said), legend="".join(legend))


class Plots(Horizontal):
    """Plots side by side, ``most`` where each has ``least_cells``, of those that were chosen or come next."""

    DEFAULT_CSS = "Plots PlotPanel { width: 1fr; height: 1fr; }"

    def __init__(self, most: int, least_cells: int, id: str) -> None:  # noqa: A002
        self._panels = [PlotPanel() for _ in range(most)]
        super().__init__(*self._panels, id=id)
        self._most, self._least_cells = most, least_cells
        self._chosen: tuple[str, ...] = ()
        self._page = 0
        self.rows = 1
        """Rows of plots."""

    def choose(self, names: Sequence[str]) -> None:
        """Show those whose titles begin with one of ``names`` first; ``next`` goes on to others."""
        self._page = self._page + 1 if tuple(names) == ("next",) else 0
        if not self._page:
            self._chosen = tuple(names)

    def pick(self, known: Sequence[Shown], title: Callable[[Shown], str]) -> list[Shown]:
        """Return those of ``known`` that are to be shown; after the last come the first again."""
        width = self.app.size.width
        wide = max(width // GOOD_CELLS, min(2, width // self._least_cells))
        room = max(1, min(self._most, wide * self.rows))
        found = sorted(known, key=lambda each: not title(each).startswith(self._chosen))
        if len(found) > room:
            skip = self._page * room % len(found)
            found = [*found[skip:], *found[:skip]]
        return found[:room]

    def drawn(self, place: int, key: str) -> tuple[PlotData, float] | None:
        """Return what the plot at ``place`` has drawn of ``key``, and the x that a column of its dots stands for."""
        plot = self._panels[place].plot
        known = plot.data is not None and plot.data.key == key and plot.x_dot
        return (plot.data, plot.x_dot) if known and plot.data is not None else None

    def show(self, plots: Sequence[PlotData]) -> None:
        self.styles.layout = "grid" if self.rows > 1 else "horizontal"
        columns = max(1, ceil(len(plots) / self.rows))
        self.styles.grid_size_columns = columns
        for panel, data in zip_longest(self._panels, plots):
            panel.display = data is not None
            last = bool(plots) and data is plots[-1]
            panel.styles.column_span = 1 + (-len(plots) % columns if last else 0)
            if data is not None:
                panel.show(data)
