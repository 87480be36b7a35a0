"""One printed line as cells: time, source, and text, in its own colours; progress bars alike."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rich.cells import chop_cells
from rich.text import Text
from textual.app import App

from distconsole.model.names import ranks_text
from distconsole.model.time_text import clock_text
from distconsole.runs.logs.buffer import BufferedLine, LogBuffer, Said, Speaker
from distconsole.runs.logs.fold import Row
from distconsole.runs.logs.levels import Level
from distconsole.runs.logs.slices import CUT_MARK
from distconsole.text.progress import Bar

SHAPES = "●■▲◆▼"
COLOURS_ON_DARK = ("#56b4e9", "#ee9cca", "#4fcabb", "#bda2f4", "#d6c6b4", "#8eaaf8")
COLOURS_ON_LIGHT = ("#00507e", "#8a2466", "#005a52", "#5a2fa0", "#5a4c3c", "#2b3f9e")
"""No green, amber or red: they mean verdicts; five shapes and six colours make thirty ranks."""
COLOURS_OF_TERMINAL = ("cyan", "magenta", "blue", "bright_cyan", "bright_magenta", "white")

ABOVE = "◇"
"""The shape of processes above the ranks: torchrun, mpirun."""

LONG_CHARS = 2000
"""Least characters of a cut line that shows its length."""

TAB_CELLS = 4
LEAST_WHO, MOST_NAME = 9, 17
"""Cells of the column of sources, with a blank behind, and of a rank with its host in it."""
MARKS = {Level.ERROR: ("✗", "bad"), Level.PART: ("│", "bad"), Level.WARN: ("!", "warn")}
_SGR = re.compile(r"(\x1b\[[0-9;:]*m)")


@dataclass(frozen=True, slots=True)
class LineStyle:
    """The look of lines: ``width`` cells, ``shift`` of them left of the screen, long ones on ``height`` lines.

    ``names`` are the cells of the longest rank with its host; ``found`` is the search, to be marked.
    """

    width: int
    shift: int = 0
    times: bool = False
    colours: tuple[str, ...] = COLOURS_ON_DARK
    height: int = 1
    found: re.Pattern[str] | None = None
    names: int = MOST_NAME

    @property
    def has_hosts(self) -> bool:
        return self.width >= 100

    @property
    def who_cells(self) -> int:
        return max(LEAST_WHO, self.names + 1) if self.has_hosts else LEAST_WHO


def line_texts(
    row: Row, line: BufferedLine, book: LogBuffer, world: int, style: LineStyle
) -> list[Text]:
    head = Text(end="", no_wrap=True)
    mark, meaning = MARKS.get(Level(row.level), ("·" if line.err else " ", "faint"))
    head.append(f"{mark} ", meaning)
    if style.times:
        head.append(f"{clock_text(row.t, tenths=True)} ", "faint")
    head.append_text(_who(row, book, world, style))
    if row.repeated:
        until = f" until {clock_text(row.until, tenths=True)}" if style.times else ""
        head.append(f"\u00d7 {row.count:,}{until}  ", "strong")
    body = _body(row, line, style)
    room = max(1, style.width - head.cell_len)
    if style.height <= 1:
        _cut(body, room, line.text)
        head.append_text(body)
        return [head]
    pieces = chop_cells(body.plain, room)[: style.height]
    parts = list(body.divide(list(accumulate(map(len, pieces)))[:-1]))
    blank = Text(" " * head.cell_len, end="")
    if len(parts) == style.height:
        _cut(parts[-1], room, line.text, always=body.cell_len > room * style.height)
    return [(head if at == 0 else blank.copy()).append_text(part) for at, part in enumerate(parts)]


def rank_colours(app: App[Any]) -> tuple[str, ...]:
    if app.native_ansi_color:
        return COLOURS_OF_TERMINAL
    return COLOURS_ON_DARK if app.current_theme.dark else COLOURS_ON_LIGHT


def name_cells(speakers: Sequence[Speaker]) -> int:
    longest = max(
        (
            len(f"{each.rank}" if each.rank is not None else "") + len(each.host)
            for each in speakers
        ),
        default=0,
    )
    return min(MOST_NAME, len("●  ") + longest)


def rank_text(rank: int, colours: Sequence[str]) -> Text:
    return Text(f"{SHAPES[rank % len(SHAPES)]} {rank}", colours[rank % len(colours)], end="")


def speakers_text(said: Said, count: int, world: int, cells: int) -> str:
    """Return the ranks of a folded line in ``cells``: ``all 8``, ``0-3,5… x7``; without ``count`` no multiplier."""
    if said.ranks:
        whole = len(said.ranks) == world and world > 2
        text = f"all {world}" if whole else ranks_text(said.ranks)
    else:
        text = ",".join(said.hosts)
    times = "" if text == f"all {count}" or not count else f" x{count}"
    if len(text) + len(times) <= cells:
        return text + times
    return f"{text[: max(0, cells - len(times) - 1)]}…{times}"


def _who(row: Row, book: LogBuffer, world: int, style: LineStyle) -> Text:
    cells = style.who_cells
    text = Text(end="")
    if row.who.bit_count() > 1:
        said = book.said_by(row.who)
        count = 0 if row.repeated else row.count
        text.append(speakers_text(said, count, world, cells - 1), "strong")
    else:
        speaker = book.speakers[row.who.bit_length() - 1]
        if speaker.rank is None:
            text.append(f"{ABOVE} {speaker.host}", "faint")
        else:
            text.append_text(rank_text(speaker.rank, style.colours))
            if style.has_hosts:
                text.append(f" {speaker.host}", "faint")
    return _pad(text, cells)


def _body(row: Row, line: BufferedLine, style: LineStyle) -> Text:
    most = 2 * (style.shift + style.width * style.height) + 256
    if row.text or not line.styled:
        body = Text((row.text or line.text)[:most], end="")
    else:
        body = Text.from_ansi(_cut_colours(line.styled, most), end="")
    if "\t" in body.plain:
        body.expand_tabs(TAB_CELLS)
    if row.level >= Level.PART:
        body.stylize_before("bad" if row.level == Level.ERROR else "warn")
    elif row.level == Level.WARN:
        body.stylize_before("warn")
    if style.found is not None:
        for match in style.found.finditer(body.plain):
            if match.end() > match.start():
                body.stylize("reverse", match.start(), match.end())
    if style.shift:
        gone = len(next(iter(chop_cells(body.plain, style.shift)), ""))
        body = Text.assemble(("…", "faint"), body[gone:], end="")
    return body


def _cut_colours(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    cut = ""
    for index, part in enumerate(_SGR.split(text)):
        cut += part if index % 2 else part[:most]
        most -= 0 if index % 2 else len(part)
        if most <= 0:
            break
    return cut


def _cut(body: Text, room: int, line: str, *, always: bool = False) -> None:
    """Cut ``body`` to ``room`` cells; a long one shows its length."""
    if body.cell_len <= room and not always:
        return
    size = f"… {length_text(line)}" if len(line) >= LONG_CHARS else "…"
    body.truncate(max(0, room - len(size)), overflow="crop")
    body.append(size, "faint")


def length_text(line: str) -> str:
    """Return the printed length of ``line``, ``64 kB`` or ``1.0 MB``."""
    told = CUT_MARK.search(line, max(0, len(line) - 20))
    return told[1] if told else f"{len(line) / 1000:.0f} kB"


def bar_text(bar: Bar, world: int, style: LineStyle) -> Text:
    text = Text("▸", "note", end="", no_wrap=True, overflow="ellipsis")
    cells = style.who_cells
    who = Text(end="")
    if bar.count > 1:
        said = Said(bar.ranks, bar.hosts)
        who.append(speakers_text(said, bar.count, world, cells - 1), "strong")
    elif bar.ranks:
        who.append_text(rank_text(bar.ranks[0], style.colours))
    else:
        who.append(bar.hosts[0], "faint")
    text.append_text(_pad(who, cells))
    if bar.spread:
        text.append(f"{bar.spread} ", "strong")
    text.append_text(Text.from_ansi(bar.shown[:1000].rstrip(), end=""))
    text.truncate(style.width, overflow="ellipsis")
    return text


def _pad(who: Text, cells: int) -> Text:
    who.truncate(cells - 1, overflow="ellipsis")
    who.append(" " * (cells - who.cell_len))
    return who
