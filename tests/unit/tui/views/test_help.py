"""No key hides another, and help tells them all."""

import importlib
import pkgutil

import pytest
from textual.widget import Widget

import distconsole.tui
from distconsole.config.schema import Config
from distconsole.tui.prompt.keymap import Keymap
from distconsole.tui.prompt.keys import KEYS, REPLAY_KEYS, VIEWS, Key
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.views.help import PARTS_WITH_KEYS, help_page, part_keys


def test_every_part_of_the_screen_with_keys_of_its_own_is_told() -> None:
    for module in pkgutil.walk_packages(distconsole.tui.__path__, "distconsole.tui."):
        importlib.import_module(module.name)
    own = {
        each
        for each in _heirs(Widget)
        if each.__module__.startswith("distconsole.tui") and vars(each).get("BINDINGS")
    }
    assert own == {part for _, part in PARTS_WITH_KEYS}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: f"{key.shown} {key.line}")
def test_no_key_hides_another(key: Key) -> None:
    keymap = Keymap()
    for view in key.views if key.inside or key.only else VIEWS:
        assert keymap.of(key.key, view) is key, view


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("view", VIEWS)
def test_help_tells_every_key_once_and_first_those_of_the_view_it_was_asked_from(
    view: str, width: int
) -> None:
    page = help_page(Shortcuts(Config()), view, width).plain
    keys, _, _ = page.partition("─ Marks")
    assert max(map(len, keys.splitlines()[3:])) <= width
    for key in (*KEYS, *REPLAY_KEYS):
        assert f"{key.shown:<13}{key.does.split()[0]}" in keys
    for _, part in PARTS_WITH_KEYS:
        for shown, does in part_keys(part):
            assert keys.count(f"{shown:<13}{does} ") <= 1
            assert f"{shown:<12} {does.split()[0]}" in keys
    here = [key for key in KEYS if view in key.views and key.views != VIEWS]
    lines = keys.splitlines()
    titles = [at for at, line in enumerate(lines) if "─ On the screen" in line]
    first = lines[titles[0] + 1 :][: len(here)] if here else []
    assert not titles or titles[0] < 6
    told = "\n".join(line[: width // 2].lstrip("│ ") for line in first)
    for key in here[:1]:
        assert told.startswith(f"{key.shown:<13}{key.does.split()[0]}")
    assert sum(f"{key.shown:<13}{key.does.split()[0]}" in told for key in here) > len(here) // 2


def _heirs(kind: type) -> set[type]:
    return {kind, *(heir for each in kind.__subclasses__() for heir in _heirs(each))}
