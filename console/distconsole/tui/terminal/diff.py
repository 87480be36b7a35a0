"""What the terminal shows, cell by cell: an update writes the cells that differ, in the bytes that this takes.

Textual writes whole lines of a widget, each piece with all of its colours.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

UNKNOWN = ""
"""Stands for a cell of which nothing is known; it differs from whatever is to be there."""
WIDE_FROM = "\U0001f000"
"""Terminals disagree on how wide characters from here on are."""


class DiffUpdate(CompositorUpdate):
    """One of Textual's updates, less what the terminal shows already."""

    def __init__(
        self, canvas: TerminalDiff, update: ChopsUpdate | LayoutUpdate, size: Size
    ) -> None:
        self._canvas = canvas
        self._update = update
        self._size = size

    def render_segments(self, console: Console) -> str:
        return self._canvas.draw(self._update, self._size, console)


class TerminalDiff:
    """The cells of a terminal as they were written last."""

    def __init__(self) -> None:
        self._size = Size(0, 0)
        self._texts: list[list[str]] = []
        self._codes: list[list[str]] = []
        self._pen = ""
        self._out: list[str] = []

    def forget(self) -> None:
        """Take nothing for granted of what the terminal shows."""
        self._size = Size(0, 0)

    def draw(self, update: ChopsUpdate | LayoutUpdate, size: Size, console: Console) -> str:
        """Return what brings ``update`` to the terminal, and know it as shown there from then on."""
        if size != self._size or isinstance(update, LayoutUpdate):
            self._size = size
            self._texts = [[UNKNOWN] * size.width for _ in range(size.height)]
            self._codes = [[UNKNOWN] * size.width for _ in range(size.height)]
        self._pen, self._out = "", []
        system = console._color_system or ColorSystem.TRUECOLOR
        for y, x, strip in _pieces(update):
            if y < size.height and x < size.width:
                self._draw_strip(y, x, strip, system, console)
        if self._pen:
            self._out.append("\x1b[m")
        return "".join(self._out)

    def _draw_strip(
        self, y: int, x: int, strip: Strip, system: ColorSystem, console: Console
    ) -> None:
        cells = _cells(strip, system)
        if cells is not None:
            self._draw_cells(y, x, *cells)
            return
        self._turn_to("")
        self._out += [_move(y, x), strip.render(console)]
        unknown = [UNKNOWN] * strip.cell_length
        # What stands right of it may have been pushed or cut, if the terminal thinks it wider.
        self._texts[y][x:] = (unknown + [UNKNOWN] * self._size.width)[: self._size.width - x]

    def _draw_cells(self, y: int, x: int, texts: list[str], codes: list[str]) -> None:
        """Write those of the cells at ``x`` of line ``y`` that differ from what is there."""
        end = min(x + len(texts), self._size.width)
        texts, codes = texts[: end - x], codes[: end - x]
        before, before_codes = self._texts[y][x:end], self._codes[y][x:end]
        if texts == before and codes == before_codes:
            return
        pen_at = -1
        for at, cell in enumerate(zip(texts, codes, before, before_codes, strict=True)):
            if cell[:2] == cell[2:]:
                continue
            if pen_at != at:
                self._out.append(_move(y, x + at))
            self._turn_to(cell[1])
            self._out.append(cell[0])
            pen_at = at + 1
        self._texts[y][x:end], self._codes[y][x:end] = texts, codes

    def _turn_to(self, code: str) -> None:
        if code != self._pen:
            self._pen = code
            self._out.append(f"\x1b[0;{code}m" if code else "\x1b[m")


def _pieces(update: ChopsUpdate | LayoutUpdate) -> Iterator[tuple[int, int, Strip]]:
    """Yield (line, cell, what is to stand there)."""
    if isinstance(update, LayoutUpdate):
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                yield y, x, strip
                x += strip.cell_length
        return
    for y, first, end in update.spans:
        for strip_end, (x, chop) in zip(
            update.chop_ends[y], update.chops[y].items(), strict=False
        ):
            left, right = max(x, first), min(strip_end, end)
            if chop is None or left >= right:
                continue
            whole = left == x and right - x >= chop.cell_length
            yield y, left, chop if whole else chop.crop(left - x, right - x)


def _cells(strip: Strip, system: ColorSystem) -> tuple[list[str], list[str]] | None:
    """Return the character and the colours of each cell, or None where not every character is a cell wide."""
    texts: list[str] = []
    codes: list[str] = []
    for text, style, control in strip:
        if control or (style is not None and style.link) or not _is_plain(text):
            return None
        texts += text
        codes += [_code(style, system)] * len(text)
    return texts, codes


def _code(style: Style | None, system: ColorSystem) -> str:
    if style is None:
        return ""
    kept = style._ansi
    return Strip.render_ansi(style, system) if kept is None else kept


@lru_cache(maxsize=4096)
def _is_plain(text: str) -> bool:
    if text.isascii():
        return text.isprintable()
    return text.isprintable() and all(cell_len(each) == 1 and each < WIDE_FROM for each in text)


def _move(y: int, x: int) -> str:
    return f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"
