"""The first line (where one is, what goes on) and the last (which keys help here), as text."""

from __future__ import annotations

from functools import lru_cache

from textual.content import Content
from textual.geometry import Size
from textual.style import Style

from distconsole.tui.prompt.keymap import Keymap
from distconsole.tui.prompt.keys import Key

SMALL = (60, 16)
"""Columns and lines below which the last line says so; the screens are made for 80 x 24 and more."""
PRESSES = "presses"
"""Name of the key in the meta of text that can be clicked."""


MAX_LABEL = 24
HEAT_KEYS = ("heat", "lines filter")
"""How the lines of keys begin that are about the heat map."""


@lru_cache(maxsize=64)
def title_content(
    keymap: Keymap, view: str, hosts: int, lost: int, going: int, width: int
) -> Content:
    """Return the title: tabs that can be clicked, hosts, runs that go on.

    Args:
        width: Cells there are; the program's name gives way first, then words about the hosts.
    """
    tabs = [_tab(tab, here=tab.line.endswith(f" {view}")) for tab in keymap.tabs]
    facts: list[tuple[str, str]] = []
    if hosts:
        facts.append((f" {hosts} host{'s' if hosts > 1 else ''}", ""))
    if lost:
        facts.append((f" {lost} lost", "$text-warning"))
    if going:
        facts.append((f" ● {going} run{'s' if going > 1 else ''}", "$text-success"))
    line = _joined(tabs, facts)
    if line.cell_length > width and lost:
        line = _joined(tabs, [(f" {hosts - lost}/{hosts} hosts", "$text-warning"), *facts[2:]])
    name = Content.styled(" distconsole ", "bold")
    return Content.assemble(name, line) if width >= line.cell_length + name.cell_length else line


def _joined(tabs: list[Content], facts: list[tuple[str, str]]) -> Content:
    return Content("").join([*tabs, *(Content.styled(words, style) for words, style in facts)])


def _tab(tab: Key, *, here: bool) -> Content:
    return _pressing(tab.key, f" [$text-accent]{tab.shown}[/] ", _marked(tab.label, here=here))


def _marked(label: str, *, here: bool) -> str:
    return f"[bold reverse]{label}[/] " if here else f"{label} "


def _pressing(key: str, *markup: str) -> Content:
    """Return ``markup`` as text on which a click is a press of ``key``."""
    return Content.from_markup("".join(markup)).stylize(Style.from_meta({PRESSES: key}))


def too_small(size: Size) -> bool:
    """Whether a terminal has no room for what the screens are made for."""
    return size.width < SMALL[0] or size.height < SMALL[1]


def small_content(size: Size) -> Content:
    """Return what the last line says there."""
    return Content.styled(
        f" {size.width} x {size.height}: too small, made for 80 x 24", "$text-warning"
    )


@lru_cache(maxsize=64)
def keys_content(
    keymap: Keymap,
    view: str,
    *,
    inside: bool,
    width: int,
    replayed: bool = False,
    goes_on: bool = True,
    heat: bool = False,
) -> Content:
    """Return the keys that help in ``view``; its letters work only ``inside`` it.

    Args:
        heat: The heat map is shown: its own keys come first.
    """
    moving = [_entry(key, usable=inside) for key in keymap.moving] if replayed else []
    tabs = {tab.line for tab in keymap.tabs}
    able = [key for key in keymap.keys if key.line not in tabs]
    shown = [key for key in able if not key.views or view in key.views]
    shown = [key for key in shown if goes_on or not key.line.startswith("stop ")]
    if heat:
        shown.sort(key=lambda key: not key.line.startswith(HEAT_KEYS))
    letters = [_entry(key, usable=inside) for key in shown if key.inside]
    # There is always room for the way to everything that there is no room for.
    others = [key for key in shown if not key.inside]
    first = [_entry(key, usable=True) for key in others if key.line == "help"]
    rest = [_entry(key, usable=True) for key in others if key.line != "help"]
    where = "to the prompt" if inside else "into the view"
    swap = _pressing("escape", f" [$text-accent]Esc[/] {where} ")
    content = Content("")
    letters = [*moving, *letters]
    for entry in [swap, *first, *(letters if inside else rest), *(rest if inside else letters)]:
        if content.cell_length + entry.cell_length > width:
            break
        content = Content.assemble(content, entry)
    return content


def _entry(key: Key, *, usable: bool) -> Content:
    name = key.shown.replace("[", r"\[")
    colours = ("$text-accent", "$foreground") if usable else ("$text-muted", "$text-muted")
    return _pressing(key.key, f" [{colours[0]}]{name}[/] [{colours[1]}]{_escaped(key.label)}[/] ")


def _escaped(label: str) -> str:
    """Return ``label``, which may be anybody's, short and with its brackets as they are."""
    short = label if len(label) <= MAX_LABEL else f"{label[: MAX_LABEL - 1]}…"
    return short.replace("[", r"\[")
