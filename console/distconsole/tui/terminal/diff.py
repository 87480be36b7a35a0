"""What the terminal shows, cell by cell: an update writes the cells that differ, in the bytes that this takes.

Textual writes whole lines of a widget, each piece with all of its colours. It knows nothing of widgets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Size
from textual.strip import Strip

UNKNOWN = ""
"""Stands for a cell of which nothing is known; it differs from whatever is to be there."""
BRIDGED_CELLS = 4
"""Writing so many cells again takes no more bytes than moving over them."""
SEEN_ON_BLANKS = frozenset(("4", "5", "7", "9", "21", "53"))
"""SGR attributes that show on a blank, too: lines, blinking, swapped colours."""
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
        """Return what to write to the terminal."""
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
        """Return what brings ``update`` to the terminal, and know it as shown there from then on.

        Args:
            update: A whole screen, which is written as it is, or parts of it.
            size: Of the terminal.
            console: Whose colours are written.
        """
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
        self._turn_to("", blank=False)
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
        compared = zip(texts, before, codes, before_codes, strict=True)
        changed = [at for at, (a, b, c, d) in enumerate(compared) if a != b or c != d]
        pen_at = -1
        for at in changed:
            if pen_at != at:
                between = range(pen_at, at)
                if pen_at < 0:
                    self._out.append(_move(y, x + at))
                elif len(between) <= BRIDGED_CELLS and not any(
                    _turned(self._pen, codes[each], texts[each] == " ")[0] for each in between
                ):
                    self._out += texts[pen_at:at]
                else:
                    self._out.append(f"\x1b[{len(between)}C")
            self._turn_to(codes[at], blank=texts[at] == " ")
            self._out.append(texts[at])
            pen_at = at + 1
        self._texts[y][x:end], self._codes[y][x:end] = texts, codes

    def _turn_to(self, code: str, *, blank: bool) -> None:
        if code != self._pen:
            sequence, self._pen = _turned(self._pen, code, blank)
            if sequence:
                self._out.append(sequence)


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
        code = _code(style, system)
        texts += text
        blank = _blank(code)
        if blank == code or " " not in text:
            codes += [code] * len(text)
        else:
            codes += [blank if each == " " else code for each in text]
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


@lru_cache(maxsize=4096)
def _parts(code: str) -> tuple[frozenset[str], str, str]:
    """Return the attributes, the colour and the background of the parameters of an SGR sequence."""
    attributes: set[str] = set()
    front = back = ""
    words = iter(code.split(";") if code else ())
    for word in words:
        colour = word
        if word in ("38", "48"):
            kind = next(words, "")
            colour = ";".join((word, kind, *islice(words, 3 if kind == "2" else 1)))
        if word in ("38", "39") or (len(word) == 2 and word[0] in "39" and word[1] in "01234567"):
            front = colour
        elif word in ("48", "49") or (len(word) >= 2 and word[:-1] in ("4", "10")):
            back = colour
        else:
            attributes.add(word)
    return frozenset(attributes), front, back


@lru_cache(maxsize=4096)
def _blank(code: str) -> str:
    """Return what of ``code`` shows on a blank."""
    attributes, _, back = _parts(code)
    return code if attributes & SEEN_ON_BLANKS else back


@lru_cache(maxsize=16384)
def _turned(pen: str, code: str, blank: bool) -> tuple[str, str]:
    """Return the sequence that turns ``pen`` into ``code``, and what the pen is then.

    A blank needs no other pen where that one would leave the same there.
    """
    attributes, front, back = _parts(pen)
    wanted, wanted_front, wanted_back = _parts(code)
    if pen == code or (blank and back == wanted_back and _blank(pen) == code):
        return "", pen
    words: list[str] = []
    if not attributes <= wanted:
        words, attributes, front, back = ["0"], frozenset(), "", ""
    words += sorted(wanted - attributes)
    if front != wanted_front:
        words.append(wanted_front or "39")
    if back != wanted_back:
        words.append(wanted_back or "49")
    return f"\x1b[{';'.join(words)}m", code


def _move(y: int, x: int) -> str:
    return f"\x1b[{y + 1};{x + 1}H" if x else f"\x1b[{y + 1}H"
