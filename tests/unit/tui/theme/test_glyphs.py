"""A terminal gets characters that it has: each that the screen is drawn with has a likeness, a cell wide."""

import ast
from pathlib import Path

import pytest

import distconsole.tui
from distconsole.tui.terminal.low_overhead import WIDE_FROM
from distconsole.tui.theme.glyphs import ASCII, LINUX_CONSOLE, UNICODE, Glyphs, glyphs, plain_text

LINUX_FONT = {*bytes(range(128, 256)).decode("cp437"), *"•◆►▶◄◀▲▼↑↓→←↔"}
"""Code page 437, and what its table in the kernel has in the places of control characters."""


def drawn() -> set[str]:
    """Return the characters beyond ASCII that strings in the screen's source have, docstrings aside."""
    found: set[str] = set()
    for file in Path(distconsole.tui.__file__).parent.rglob("*.py"):
        tree = ast.parse(file.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found |= set() if id(node) in told else set(node.value)
    return {
        each for each in found if not each.isascii() and each.isprintable() and each < WIDE_FROM
    }


def test_every_character_of_the_screen_has_a_likeness() -> None:
    for each in drawn():
        assert plain_text(each, ASCII).isascii(), each
        assert plain_text(each, ASCII) != "?", each
        in_font = set(plain_text(each, LINUX_CONSOLE)) <= LINUX_FONT
        assert in_font or plain_text(each, LINUX_CONSOLE).isascii(), each


def test_what_has_no_likeness_keeps_its_cells() -> None:
    assert plain_text("naïve 漢 ✓", ASCII) == "na?ve ?? v"
    assert plain_text("naïve 漢 ✓", LINUX_CONSOLE) == "naïve 漢 √"


@pytest.mark.parametrize(
    ("environment", "shown"),
    [
        ({"TERM": "xterm-256color", "LANG": "C.UTF-8"}, UNICODE),
        ({"TERM": "xterm-256color"}, UNICODE),
        ({"TERM": "linux", "LANG": "de_DE.UTF-8"}, LINUX_CONSOLE),
        ({"TERM": "vt100", "LANG": "C.UTF-8"}, ASCII),
        ({"TERM": "xterm", "LANG": "C", "LC_CTYPE": "C.UTF-8"}, ASCII),
        ({"TERM": "xterm", "LANG": "C", "LC_ALL": "en_US.UTF-8"}, UNICODE),
        ({"TERM": "xterm", "LC_ALL": "POSIX", "LANG": "en_US.UTF-8"}, ASCII),
    ],
)
def test_terminal_and_locale_say_what_there_is(
    environment: dict[str, str], shown: Glyphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "LANG", "LC_ALL", "LC_CTYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert glyphs() is shown
