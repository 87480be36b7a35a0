"""Help: what is where, which keys and verbs there are; made from the same tables that do the work."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widget import Widget

from distconsole.grammar import VERBS
from distconsole.grammar.secrets import mask_secrets
from distconsole.tui.prompt.keys import CHARACTERS, SCREEN_VERBS, VIEWS, Key
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.views.check import FindingPage
from distconsole.tui.views.launch import HostTable, LastLaunches, More
from distconsole.tui.widgets.bars import PARTS, PHASES, REST
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Words
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.pair_matrix import PairMatrix

MARKS = (
    ("✗1", "bad", "failed first: the one to look at"),
    ("✗", "bad", "failed"),
    ("■", "faint", "killed, mostly because another one failed"),
    ("‖", "warn", "lives, and has finished no step for 5 s, or for two of its steps"),
    ("?", "warn", "its host is not connected, or tells nothing"),
    ("▲", "warn", "slow: the others wait for it, or it makes fewer steps than they do"),
    ("✓", "faint", "ended well"),
)
"""What stands before a rank."""

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
)
"""Parts of the screen that have keys of their own while they have the focus."""

Sections = list[tuple[str, list[tuple[str, str]]]]
"""Titles, and under each keys or words with what they mean."""
NAMES = {"pageup": "Page Up", "pagedown": "Page Down", "ctrl+c": "^C"}


KEY_CELLS = 13
WORDY = 120
"""From so many cells on keys stand with the lines that they type."""
INTRO = (
    "The view has the keys first. : opens the prompt, Escape gives the keys back; q and Escape go to what was shown before.\n"
    "At the prompt Tab completes, Up and Down go through what was typed before, and ^R searches it. ^P finds everything by name.\n"
    "^C cancels what goes on (jobs lists it), never a run: 'stop RUN' does. Leaving never stops a run. 'help VERB' says all about a verb."
)


class HelpView(VerticalScroll):
    DEFAULT_CSS = "HelpView { padding: 0 1; scrollbar-gutter: stable; }"

    def __init__(self, shortcuts: Shortcuts, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._shortcuts = shortcuts
        self.about = ""
        """The view from which help was asked for: its keys come first."""

    def compose(self) -> ComposeResult:
        yield Words()

    def on_show(self) -> None:
        self._show()

    def on_resize(self) -> None:
        self._show()

    def _show(self) -> None:
        width = self.scrollable_content_region.width
        if width:
            self.query_one(Words).show(help_page(self._shortcuts, self.about, width))


def help_page(shortcuts: Shortcuts, about: str, width: int) -> Text:
    """Return all keys, in two columns with those of the view ``about`` first, and all verbs, in ``width`` cells."""
    text = Text(INTRO)
    keymap = shortcuts.keymap
    here = keys_here(keymap.keys, about)
    anywhere = [key for key in keymap.keys if not (key.inside or key.only)]
    any_view = [key for key in keymap.keys if key.views == VIEWS]
    told = {*here, *anywhere, *any_view}
    others = [key for key in keymap.keys if key not in told]
    wordy = width >= WORDY
    left = [
        (f"On the screen '{about}'", _rows(here, wordy=wordy)),
        ("In any view", _rows(any_view, wordy=wordy)),
        ("Anywhere", _rows([key for key in anywhere if key not in here], wordy=wordy)),
        ("While a past run is shown", _rows(keymap.moving, wordy=wordy)),
    ]
    right = [(f"In {title}", part_keys(part)) for title, part in PARTS_WITH_KEYS]
    right.insert(0, ("In other views", _rows(others, wordy=wordy, place=True)))
    _two_columns(text, left, right, width)
    if shortcuts.aliases:
        lines = [(alias.name, mask_secrets(alias.line)) for alias in shortcuts.aliases.values()]
        _section(text, "Aliases", lines)
    text.append("\nMarks\n", style="bold underline")
    for mark, style, meaning in MARKS:
        text.append(f"  {mark:<12}", style=style)
        text.append(f"{meaning}\n")
    text.append("  a step is  ")
    for name, shade, style in (*PARTS, REST):
        text.append(f" {shade}{shade}", style=style)
        text.append(f" {name}")
    text.append("\n  a start is  ")
    for phase in PHASES:
        text.append(f" {phase.shade}{phase.shade}", style=phase.style)
        text.append(f" {phase.doing}")
    text.append("\n")
    _section(text, "Verbs", list(VERBS.items()))
    _section(text, "Only here", list(SCREEN_VERBS.items()))
    return text


def _rows(keys: Iterable[Key], *, wordy: bool, place: bool = False) -> list[tuple[str, str]]:
    return [
        (
            key.shown,
            key.label
            + (f" ({', '.join(key.views)})" if place else "")
            + (
                f": {key.line}{'…' if key.asks else ''}"
                if wordy and key.line.strip() not in ("", key.label)
                else ""
            ),
        )
        for key in keys
    ]


def _two_columns(text: Text, left: Sections, right: Sections, width: int) -> None:
    cells = (width - 2) // 2
    for one, other in zip_longest(_column(left), _column(right), fillvalue=Text()):
        one.truncate(cells, overflow="ellipsis", pad=True)
        other.truncate(cells, overflow="ellipsis")
        text.append_text(Text("\n")).append_text(one).append("  ").append_text(other)
    text.append("\n")


def _column(sections: Sections) -> list[Text]:
    """Return the lines of a column."""
    lines = []
    for title, rows in sections:
        if rows:
            lines += [Text(), Text.assemble((title, "bold underline"))]
        for name, words in rows:
            lines.append(Text.assemble((f"{name:<{KEY_CELLS}}", "note"), words))
    return lines


def _section(text: Text, title: str, rows: list[tuple[str, str]]) -> None:
    text.append(f"\n{title}\n", style="bold underline")
    for left, right in rows:
        text.append(f"  {left:<12}", style="note")
        text.append(f"{right}\n")


def keys_here(keys: Iterable[Key], view: str) -> list[Key]:
    """Return the keys that are about ``view`` more than about any."""
    return [key for key in keys if view in key.views and key.views != VIEWS]


def part_keys(part: type[Widget]) -> list[tuple[str, str]]:
    """Return the keys of a part of the screen, with what each does."""
    bindings = [each for each in vars(part)["BINDINGS"] if isinstance(each, Binding)]
    return [
        (", ".join(map(_key_text, each.key.split(","))), each.description) for each in bindings
    ]


def place_of(key: Key) -> str:
    if not (key.inside or key.only):
        return "anywhere"
    views = "any view" if key.views == VIEWS else ", ".join(key.views)
    return f"inside {views}" if key.inside else views


def _key_text(key: str) -> str:
    key = key.strip()
    if key in NAMES or key in CHARACTERS:
        return NAMES.get(key) or CHARACTERS[key]
    return key.capitalize() if len(key) > 1 else key
