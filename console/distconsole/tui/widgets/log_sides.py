"""Panels beside a run's lines: counts by rank and by level, to choose from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from distconsole.model.names import RANKS_PATTERN
from distconsole.runs.logs.buffer import LogBuffer, Speaker
from distconsole.runs.logs.filter import LogFilter
from distconsole.runs.logs.levels import LEVEL_WORDS, Level
from distconsole.text.tables import Column
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.log_line import ABOVE, MARKS, rank_colours, rank_text
from distconsole.tui.widgets.panel import Panel

BY_RANK = re.compile(rf"{RANKS_PATTERN.pattern}|host:.+")
BY_LEVEL = re.compile("|".join(LEVEL_WORDS))
"""Words of a filter that a choice in a panel replaces."""
WORST = {"error": Level.ERROR, "warn": Level.WARN}
MOST_EXACT = 999_999
"""Larger numbers are shown in thousands or millions."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The number of lines of ``name`` by ``Level``; ``word`` filters for them.

    ``counts`` changes in place, so that the row need not be made again.
    """

    name: Text
    counts: Sequence[int]
    word: str
    shown: bool = True

    def cell(self, levels: Sequence[Level]) -> Text:
        count = sum(self.counts[level] for level in levels)
        bad = MARKS[levels[0]][1] if len(levels) == 1 and count else ""
        return Text(lines_text(count), bad if self.shown else "faint")


COLUMNS: list[Column[Counted]] = [
    Column("", 7, lambda row: row.name),
    Column("lines", 7, lambda row: row.cell(list(Level)), right=True),
    Column("!", 5, lambda row: row.cell([Level.WARN]), right=True),
    Column("✗", 5, lambda row: row.cell([Level.ERROR]), right=True),
]
LEVEL_COLUMNS: list[Column[Counted]] = [
    Column("", 8, COLUMNS[0].cell),
    Column("lines", 18, COLUMNS[1].cell, right=True),
]


class LogSides(Vertical):
    """Panels beside the log; Enter on a rank or a level shows its lines alone."""

    DEFAULT_CSS = """
    LogSides { width: 31; }
    LogSides #log-ranks-panel, LogSides #log-ranks { height: 1fr; }
    LogSides #log-levels { height: 4; }
    """

    @dataclass
    class Chosen(Message):
        """``word`` is to replace those of its ``kind`` in the filter."""

        kind: re.Pattern[str]
        word: str

    _listed: object = None

    def compose(self) -> ComposeResult:
        with Panel("Ranks", keys="Enter", id="log-ranks-panel"):
            yield LineTable(COLUMNS, same=lambda row: row.word, id="log-ranks")
        with Panel("Level", keys="Enter"):
            yield LineTable(LEVEL_COLUMNS, same=lambda row: row.word, id="log-levels")

    def show(self, book: LogBuffer, wanted: LogFilter, world: int) -> None:
        """Show the line counts of ``world`` ranks, those with errors first, and the part that ``wanted`` lets through."""
        counts, ranks = book.counts, self.query_one("#log-ranks", LineTable)
        erring = [bool(each[Level.ERROR]) for each in counts.by_speaker]
        colours = rank_colours(self.app)
        key = (id(book), world, len(erring), sum(erring), wanted.text, colours)
        if key == self._listed:
            ranks.redraw()
        else:
            self._listed = key
            spoke = list(zip(book.speakers, counts.by_speaker, erring, strict=False))
            spoke.sort(key=lambda of: (not of[2], of[0].rank is None, of[0].rank or 0, of[0].host))
            ranks_said = sum(who.rank is not None for who, _, _ in spoke)
            title = f"Ranks {ranks_said:,} of {world:,}"
            order = "those with errors first" if any(erring) else ""
            self.query_one("#log-ranks-panel", Panel).entitle(title, legend=order)
            every = Counted(
                Text("all"), counts.by_level, "", shown=not (wanted.spans or wanted.host)
            )
            ranks.show([every, *(_row(who, count, wanted, colours) for who, count, _ in spoke)])
        self._show_levels(counts.by_level, wanted)

    def _show_levels(self, by_level: Sequence[int], wanted: LogFilter) -> None:
        rows = []
        for word, level in WORST.items():
            mark, style = MARKS[level]
            only = [count if at == level else 0 for at, count in enumerate(by_level)]
            shown = wanted.level <= LEVEL_WORDS[word]
            rows.append(Counted(Text(f"{mark} {word}", style), only, word, shown))
        rest = [0 if at in WORST.values() else count for at, count in enumerate(by_level)]
        rows.append(Counted(Text("· other"), rest, "", not wanted.level))
        self.query_one("#log-levels", LineTable).show(rows)

    @on(LineTable.Chosen)
    def choose(self, event: LineTable.Chosen) -> None:
        event.stop()
        row: Counted | None = event.table.row_under_cursor()
        if row is not None:
            kind = BY_RANK if event.table.id == "log-ranks" else BY_LEVEL
            self.post_message(self.Chosen(kind, row.word))


def _row(
    speaker: Speaker, counts: Sequence[int], wanted: LogFilter, colours: Sequence[str]
) -> Counted:
    shown = wanted.lets(speaker)
    if speaker.rank is None:
        name = Text(f"{ABOVE} {speaker.host}", "faint")
        return Counted(name, counts, f"host:{speaker.host}", shown)
    return Counted(rank_text(speaker.rank, colours), counts, str(speaker.rank), shown)


def lines_text(count: int) -> str:
    """Return a number of lines in at most seven cells."""
    if count <= MOST_EXACT:
        return f"{count:,}" if count else ""
    return f"{count / 1e6:.2f}M" if count < 1e8 else f"{count / 1e6:.0f}M"
