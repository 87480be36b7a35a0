"""Every key that does something, for the help."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding
from textual.widget import Widget

from distconsole.tui.prompt.keys import CHARACTERS, VIEWS, Key
from distconsole.tui.prompt.question import Question
from distconsole.tui.views.check import FindingPage
from distconsole.tui.views.launch import HostTable, LastLaunches, More
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.pair_matrix import PairMatrix

PARTS: tuple[tuple[str, type[Widget]], ...] = (
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

NAMES = {"pageup": "Page Up", "pagedown": "Page Down", "ctrl+c": "^C"}


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
