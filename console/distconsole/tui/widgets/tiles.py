"""Tiles: one figure each, large enough to be read at a glance, with its history and related words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual.containers import Horizontal
from textual.content import Content
from textual.geometry import Size
from textual.strip import Strip

from distconsole.tui.theme.glyphs import glyphs
from distconsole.tui.widgets.bars import spark_text
from distconsole.tui.widgets.line_widget import LineWidget

SPARK_CELLS = 8
GAP = "  "


@dataclass(frozen=True, slots=True)
class TileData:
    """A tile of one figure.

    Attributes:
        title: Name of the figure.
        value: The figure with its unit; ``–`` if not known now.
        style: Meaning of the figure; ``faint`` unless measured now.
        recent: Values of the last minute, the newest last, None in gaps; empty for no sparkline.
        more: Related words with their styles, the most needed first; those without room are left out.
    """

    title: str
    value: str
    style: str = "strong"
    recent: Sequence[float | None] = ()
    more: Sequence[tuple[str, str]] = ()


class Tile(LineWidget):
    """One figure in a frame with its title; without a frame (``Tiles``) the title follows it."""

    DEFAULT_CSS = """
    Tile { width: 1fr; height: 3; border: round $frame; padding: 0 1; background: $background; border-title-color: $text-muted; }
    Tile.-plain { border: solid $frame; }
    .-ruled Tile, .-short Tile { border: none; height: 1; padding: 0; width: auto; margin-right: 2; }
    """

    data: TileData | None = None

    def __init__(self) -> None:
        super().__init__()
        self.set_class(glyphs().border == "solid", "-plain")

    def show(self, data: TileData | None) -> None:
        if data is not None and (self.data is None or data.title != self.data.title):
            self.border_title = Content(data.title)
        if data != self.data:
            before, self.data = self.least_cells, data
            if self.least_cells != before and not self.framed:
                self.refresh(layout=True)
            self.redraw()

    @property
    def framed(self) -> bool:
        return bool(self.styles.border_left[0])

    @property
    def least_cells(self) -> int:
        return 0 if self.data is None else tile_text(self.data, 0, framed=False).cell_len

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return self.least_cells

    def make_line(self, y: int) -> Strip:
        data = self.data
        if data is None or y:
            return self.join([])
        return self.strip(tile_text(data, self.cells, framed=self.framed))


def tile_text(data: TileData, cells: int, *, framed: bool) -> Text:
    """Return the line of a tile in ``cells``: the figure, its sparkline and the rest that fits."""
    text = Text(data.value, style="", end="", no_wrap=True)
    text.stylize(data.style)
    if not framed:
        text.append(f" {data.title}", style="faint")
    rest = [(words, style) for words, style in data.more if words]
    if framed and data.recent:
        style = "faint" if data.style == "faint" else "curve"
        rest.insert(min(1, len(rest)), (spark_text(data.recent, SPARK_CELLS), style))
    for words, style in rest:
        if text.cell_len + len(GAP) + len(words) > cells:
            break
        text.append(GAP).append(words, style=style)
    return text


class Tiles(Horizontal):
    """Tiles side by side, as many of ``most`` as are shown; without frames as many as fit."""

    DEFAULT_CSS = (
        "Tiles { height: auto; overflow: hidden; } .-ruled Tiles, .-short Tiles { padding: 0 1; }"
    )

    def __init__(self, most: int, id: str) -> None:  # noqa: A002
        self._tiles = [Tile() for _ in range(most)]
        super().__init__(*self._tiles, id=id)

    def show(self, tiles: Sequence[TileData]) -> None:
        left = self.size.width or self.app.size.width
        for place, tile in enumerate(self._tiles):
            tile.show(tiles[place] if place < len(tiles) else None)
            cells = 0 if tile.framed else tile.least_cells
            tile.display = place < len(tiles) and cells <= left
            left -= cells + len(GAP) if cells else 0
