"""The terminal shows the same, cell by cell, whether it got all of Textual's bytes or only what changed."""

import random
import re
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.geometry import Region, Size
from textual.strip import Strip

from distconsole.tui.terminal.low_overhead import TerminalDiff

SIZE = Size(24, 5)
STYLES = [
    None,
    Style(),
    Style(color="rgb(1,2,3)"),
    Style(color="rgb(1,2,3)", bgcolor="rgb(4,5,6)"),
    Style(bgcolor="rgb(4,5,6)", bold=True),
    Style(color="color(200)", bgcolor="color(17)", italic=True, bold=True),
    Style(color="bright_red", bgcolor="bright_black", underline=True),
    Style(color="default", bgcolor="default", reverse=True),
    Style(color="blue", bgcolor="yellow", dim=True, strike=True),
    Style(link="https://example.org", color="green"),
]
WORDS = [
    "step 650",
    "   ",
    "░▒▓█",
    "⣿⡇",
    "宽字",
    "e\u0301x",
    "⚠\ufe0f!",
    "\U0001f600",
    "a b  c",
    "✗▲…",
]
PLAIN = [word for word in WORDS if word.isascii() or word[0] in "░⣿✗"]


class Terminal:
    """What a terminal of ``SIZE`` shows: each cell's character and how it looks."""

    def __init__(self) -> None:
        self.cells = [[(" ", "", "", frozenset[str]())] * SIZE.width for _ in range(SIZE.height)]
        self.x = self.y = 0
        self._look: tuple[str, str, frozenset[str]] = ("", "", frozenset())

    def take(self, data: str) -> None:
        """Do what ``data`` says."""
        for escape, kind, text in re.findall(
            r"\x1b(?:\[([0-9;]*)([A-Za-z])|\][^\x1b]*\x1b\\)|([^\x1b]+)", data
        ):
            if text:
                self._write(text)
            elif kind == "H":
                line, _, column = escape.partition(";")
                self.y, self.x = int(line or 1) - 1, int(column or 1) - 1
            elif kind == "C":
                self.x += int(escape)
            elif kind == "m":
                self._turn([int(word or 0) for word in escape.split(";")])
            else:
                assert not kind, f"unknown sequence {escape}{kind}"

    def _write(self, text: str) -> None:
        for character in text.replace("\n", ""):
            width = cell_len(character)
            if not width:
                before = self.cells[self.y][self.x - 1]
                self.cells[self.y][self.x - 1] = (before[0] + character, *before[1:])
                continue
            shown = character, *self._look
            for cell in [shown, ("", *self._look)][:width]:
                self.cells[self.y][self.x] = cell
                self.x += 1

    def _turn(self, words: list[int]) -> None:
        front, back, attributes = self._look
        rest = iter(words)
        for word in rest:
            if word == 0:
                front, back, attributes = "", "", frozenset()
            elif word in (38, 48):
                kind = next(rest)
                colour = str([kind, *(next(rest) for _ in range(3 if kind == 2 else 1))])
                front, back = (colour, back) if word == 38 else (front, colour)
            elif 30 <= word <= 39 or 90 <= word <= 97:
                front = "" if word == 39 else str(word)
            elif 40 <= word <= 49 or 100 <= word <= 107:
                back = "" if word == 49 else str(word)
            else:
                attributes |= {str(word)}
        self._look = front, back, attributes

    def seen(self) -> list[list[tuple[str, str, str, frozenset[str]]]]:
        """Return the cells as the eye sees them: a blank has no colour of its own."""
        lined = {"4", "7", "9"}
        return [
            [
                (text, "", back, frozenset()) if text == " " and not looks & lined else
                (text, front, back, looks)
                for text, front, back, looks in line
            ]
            for line in self.cells
        ]  # fmt: skip


def strip(chance: random.Random, width: int, words: list[str]) -> Strip:
    """Return a strip of random words and styles."""
    segments: list[Segment] = []
    while sum(segment.cell_length for segment in segments) < width:
        segments.append(Segment(chance.choice(words), chance.choice(STYLES)))
    return Strip(segments).crop(0, width)


def some_update(chance: random.Random, words: list[str]) -> ChopsUpdate | LayoutUpdate:
    """Return a whole screen, or parts of lines that are new."""
    if chance.random() < 0.1:
        lines = [[strip(chance, SIZE.width, words)] for _ in range(SIZE.height)]
        return LayoutUpdate(lines, Region(0, 0, *SIZE))
    cuts = [0, *sorted(chance.sample(range(1, SIZE.width), 2)), SIZE.width]
    chops = [
        {x: strip(chance, end - x, words) for x, end in pairwise(cuts)} for _ in range(SIZE.height)
    ]
    lines_new = sorted(chance.sample(range(SIZE.height), 2))
    # What begins inside of a strip, Textual writes from the strip's own beginning.
    spans = [(y, chance.choice(cuts[:-1]), chance.randint(1, SIZE.width)) for y in lines_new]
    return ChopsUpdate(chops, [span for span in spans if span[1] < span[2]], [cuts[1:]] * 5)


@pytest.mark.parametrize("words", [PLAIN, WORDS], ids=["one cell each", "any"])
def test_a_terminal_shows_what_textual_meant_after_any_updates(words: list[str]) -> None:
    chance = random.Random(7)
    console = Console(color_system="truecolor", force_terminal=True)
    for _ in range(40):
        canvas, spared, full = TerminalDiff(), Terminal(), Terminal()
        first = LayoutUpdate([[strip(chance, SIZE.width, words)] for _ in range(5)], SIZE.region)
        updates = [first, *(some_update(chance, words) for _ in range(12))]
        for update in updates:
            if isinstance(update, LayoutUpdate) or update.spans:
                spared.take(canvas.draw(update, SIZE, console))
                full.take(update.render_segments(console))
                assert spared.seen() == full.seen()


def drawn(canvas: TerminalDiff, text: str, style: str = "") -> str:
    """Return what ``canvas`` writes for a line of ``text``."""
    line = Strip([Segment(text.ljust(SIZE.width), Style.parse(style))])
    update = ChopsUpdate([{0: line}], [(0, 0, SIZE.width)], [[SIZE.width]])
    return canvas.draw(update, SIZE, Console(color_system="truecolor", force_terminal=True))


def test_only_the_cells_that_changed_are_written() -> None:
    canvas = TerminalDiff()
    drawn(canvas, "step 650   loss 0.25")
    assert drawn(canvas, "step 700   loss 0.24") == "\x1b[1;6H70\x1b[12C4"
    assert drawn(canvas, "step 700   loss 0.24") == ""
    assert (
        drawn(canvas, "step 700   loss 0.24", "red")
        == f"\x1b[1H\x1b[31m{'step 700   loss 0.24':<24}\x1b[m"
    )
    canvas.forget()
    assert drawn(canvas, "step 700") == f"\x1b[1H{'step 700':<24}"
