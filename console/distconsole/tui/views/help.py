"""Help on screen, keys and verbs, made from the same tables that do the work."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import zip_longest

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widget import Widget

from distconsole.grammar.secrets import mask_secrets
from distconsole.grammar.verbs import VERBS
from distconsole.tui.login import LoginScreen
from distconsole.tui.prompt.keys import SCREEN_VERBS, VIEWS, Key
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.theme.glyphs import glyphs
from distconsole.tui.views.check import FindingPage
from distconsole.tui.views.launch import HostTable, LastLaunches, More
from distconsole.tui.widgets.bars import PARTS, PHASES, REST
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Words
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.pair_matrix import PairMatrix
from distconsole.tui.widgets.panel import LINE, RULED_TO

MARKS = (
    ("✗1", "bad", "failed first: the one to look at"),
    ("✗", "bad", "failed"),
    ("■", "faint", "ended with the run, mostly because another one failed"),
    ("‖", "warn", "lives, and has finished no step for 5 s, or for two of its steps"),
    ("?", "warn", "its host is not connected, or tells nothing"),
    ("▲", "warn", "slow: the others wait for it, or it makes fewer steps than they do"),
    ("✓", "faint", "ended well"),
)
"""The signs before a rank."""

PARTS_WITH_KEYS: tuple[tuple[str, type[Widget]], ...] = (
    ("tables", LineTable),
    ("logs", LogTail),
    ("the heat map", HeatMap),
    ("the matrix of pairs", PairMatrix),
    ("the page of a finding", FindingPage),
    ("hosts of the launch form", HostTable),
    ("further fields of the launch form", More),
    ("the last launches", LastLaunches),
    ("a question", Question),
    ("a login", LoginScreen),
)
"""Parts of the screen with keys of their own while focused."""

Rows = list[tuple[Text, str]]
"""Keys or words with their meanings."""
Sections = list[tuple[str, Rows]]
NAMES = {"pageup": "Page Up", "pagedown": "Page Down"}


KEY_CELLS = 13
GAP = 1
COLUMNS = ((4, 300), (3, 200), (2, 70), (1, 0))
"""(columns of help, least cells for them)."""
MANY_VIEWS = 4
"""Most views that help names for a key."""
CORNERS = {"round": "╭╮╰╯", "solid": "┌┐└┘"}
WORDY = 120
"""Least cells for keys with the lines that they type."""
INTRO = (
    "Keys act on the view. Press : to type a command, Esc to return.\n"
    "'help VERB' explains a verb. Leaving never stops a run.\n"
    "hosts a,b chooses hosts for check, run, top and the form; Tab completes."
)
PROMPT = (
    ("Tab", "complete"),
    ("Up, Down", "what was typed before"),
    ("^R", "search what was typed before"),
    ("^P", "everything by name, in any view"),
    ("^C", "cancel what goes on (jobs lists it), never a run: 'stop RUN' does"),
)


class HelpView(VerticalScroll):
    DEFAULT_CSS = "HelpView { padding: 0 1; scrollbar-gutter: stable; }"

    def __init__(self, shortcuts: Shortcuts, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._shortcuts = shortcuts
        self.about = ""
        """The view in which help was opened: its keys come first."""

    def compose(self) -> ComposeResult:
        yield Words()

    def on_show(self) -> None:
        self.query_one(Words).mark()
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        width = self.scrollable_content_region.width
        if width:
            self.query_one(Words).show(help_page(self._shortcuts, self.about, width))


def help_page(shortcuts: Shortcuts, about: str, width: int) -> Text:
    """Return all keys, in columns with those of the view ``about`` first, then marks and all verbs, in ``width`` cells."""
    keymap = shortcuts.keymap
    here = [key for key in keymap.keys if about in key.views and key.views != VIEWS]
    any_view = [key for key in keymap.keys if key.inside and key.views == VIEWS]
    anywhere = [key for key in keymap.keys if not (key.inside or key.only) and key not in here]
    others = [key for key in keymap.keys if key not in {*here, *anywhere, *any_view}]
    wordy = width >= WORDY
    sections = [
        (f"On the screen '{about}'", _rows(here, wordy=wordy)),
        ("In any view", _rows(any_view, wordy=wordy)),
        ("Anywhere", _rows(anywhere, wordy=wordy)),
        ("At the prompt", [(_name(keys), does) for keys, does in PROMPT]),
        ("While no hosts are chosen", _rows(keymap.first, wordy=wordy)),
        ("While a past run is shown", _rows(keymap.moving, wordy=wordy)),
        ("In other views", _rows(others, wordy=wordy, place=True)),
        *_parts(),
    ]
    count = next(count for count, least in COLUMNS if width >= least)
    each = (width - GAP * (count - 1)) // count
    boxes = [_box(title, rows, each, framed=width > RULED_TO) for title, rows in sections if rows]
    lines = [*Text(INTRO).split(), Text(), *_beside(boxes, count, each)]
    aliases = [
        (_name(alias.name), mask_secrets(alias.line)) for alias in shortcuts.aliases.values()
    ]
    marks = [(Text(mark, style), meaning) for mark, style, meaning in MARKS]
    verbs = [[(_name(verb), does) for verb, does in of.items()] for of in (VERBS, SCREEN_VERBS)]
    below: tuple[tuple[int, Sections], ...] = (
        (1, [("Aliases", aliases)] if aliases else []),
        (min(2, count), [("Marks", marks), ("Shades", SHADES)]),
        (1 if count < 3 else 2, [("Verbs", verbs[0]), ("Only here", verbs[1])]),
    )
    for columns, shown in below:
        each = (width - GAP * (columns - 1)) // columns
        boxes = [_box(title, rows, each, framed=width > RULED_TO) for title, rows in shown]
        lines += _beside(boxes, columns, each)
    return Text("\n").join(lines)


def _name(words: str) -> Text:
    return Text(words, "note")


SHADES: Rows = [
    *((Text(shade * 2, style), f"{name} of a step") for name, shade, style in (*PARTS, REST)),
    *((Text(phase.shade * 2, phase.style), f"{phase.doing}, of a start") for phase in PHASES),
]


def _parts() -> Sections:
    """Return the keys of parts of the screen; a key with one effect in several parts appears once."""
    told: set[tuple[str, str]] = set()
    sections: Sections = []
    for title, part in PARTS_WITH_KEYS:
        rows = [row for row in part_keys(part) if row not in told]
        told.update(rows)
        sections.append((f"In {title}", [(_name(keys), does) for keys, does in rows]))
    return sections


def _rows(keys: Iterable[Key], *, wordy: bool, place: bool = False) -> Rows:
    views: dict[tuple[str, str], str] = {}
    for key in keys:
        line = f": {key.line}{'…' if key.asks else ''}"
        typed = line if wordy and key.line.strip() not in ("", key.label) else ""
        where = ", ".join(key.views) if len(key.views) <= MANY_VIEWS else "and most others"
        row = (key.shown, key.does + typed)
        views[row] = f"{views[row]}, {where}" if row in views else where
    return [
        (_name(shown), f"{does} ({where})" if place else does)
        for (shown, does), where in views.items()
    ]


def _box(title: str, rows: Rows, width: int, *, framed: bool) -> list[Text]:
    """Return ``rows`` under their title, in a frame or below a rule as panels have it, in ``width`` cells."""
    inner = width - (4 if framed else 2)
    lines = []
    for left, words in rows:
        first, *rest = textwrap.wrap(words, max(8, inner - KEY_CELLS)) or [""]
        line = Text()
        line.append(left.plain, style=left.style)
        line.pad_right(max(1, KEY_CELLS - left.cell_len))
        lines += [line.append(first), *(Text(" " * KEY_CELLS + each) for each in rest)]
    for line in lines:
        line.truncate(inner, overflow="ellipsis", pad=True)
    corners = CORNERS[glyphs().border] if framed else LINE * 4
    title = title[: width - 6]
    rule = LINE * (width - len(title) - 5)
    top = Text.assemble(
        (f"{corners[0]}{LINE} ", "frame"), (title, "strong"), (f" {rule}{corners[1]}", "frame")
    )
    if not framed:
        return [top, *(Text(" ").append_text(line).append(" ") for line in lines)]
    side = ("│", "frame")
    body = [Text.assemble(side, " ", line, " ", side) for line in lines]
    return [top, *body, Text(f"{corners[2]}{LINE * (width - 2)}{corners[3]}", "frame")]


def _beside(boxes: list[list[Text]], count: int, width: int) -> list[Text]:
    target = sum(map(len, boxes)) / count
    columns: list[list[Text]] = [[]]
    for box in boxes:
        if columns[-1] and len(columns[-1]) + len(box) / 2 > target and len(columns) < count:
            columns.append([])
        columns[-1] += box
    blank = Text(" " * width)
    return [Text(" " * GAP).join(line) for line in zip_longest(*columns, fillvalue=blank)]


def part_keys(part: type[Widget]) -> list[tuple[str, str]]:
    bindings = [each for each in vars(part)["BINDINGS"] if isinstance(each, Binding)]
    keys = [[key.strip() for key in each.key.split(",")] for each in bindings]
    shown = [", ".join(NAMES.get(key) or Key(key, "", "").shown for key in each) for each in keys]
    return [(text, each.description) for text, each in zip(shown, bindings, strict=True)]
