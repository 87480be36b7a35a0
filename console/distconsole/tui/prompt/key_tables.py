"""Every key that does something, for the help and for the document of keys; made from what does the work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

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
    return [(", ".join(map(_shown, each.key.split(","))), each.description) for each in bindings]


def place_of(key: Key) -> str:
    """Return where ``key`` works, in words."""
    if not (key.inside or key.only):
        return "anywhere"
    views = "any view" if key.views == VIEWS else ", ".join(key.views)
    return f"inside {views}" if key.inside else views


def keys_table(keys: Sequence[Key]) -> list[str]:
    """Return the rows of a table in Markdown: key, label, line, place."""
    rows = ["| key | | types | works |", "|---|---|---|---|"]
    for key in keys:
        line = f"`{key.line.strip()}`" + (" …" if key.asks else "")
        rows.append(f"| `{key.shown}` | {key.label} | {line} | {place_of(key)} |")
    return rows


def parts_table() -> list[str]:
    """Return the rows of a table in Markdown of the keys of all parts."""
    rows = ["| in | key | does |", "|---|---|---|"]
    for title, part in PARTS:
        rows += [f"| {title} | {keys} | {does} |" for keys, does in part_keys(part)]
    return rows


def _shown(key: str) -> str:
    key = key.strip()
    if key in NAMES or key in CHARACTERS:
        return NAMES.get(key) or CHARACTERS[key]
    return key.capitalize() if len(key) > 1 else key
