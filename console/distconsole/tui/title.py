"""The first line (where one is, what goes on) and the last (which keys help here), as text."""

from __future__ import annotations

from functools import lru_cache

from textual.content import Content
from textual.style import Style

from distconsole.tui.keys import KEYS, TABS, Key

PRESSES = "presses"
"""Name of the key in the meta of text that can be clicked."""


@lru_cache(maxsize=64)
def title_content(view: str, hosts: int, lost: int, going: int, width: int) -> Content:
    """Return the title: tabs that can be clicked, hosts, runs that go on.

    Args:
        view: The view on the screen.
        hosts: How many hosts there are.
        lost: How many of them fell silent.
        going: How many runs go on.
        width: Cells there are; the program's name gives way first.
    """
    tabs = [_tab(tab, here=tab.line.endswith(f" {view}")) for tab in TABS]
    facts: list[tuple[str, str]] = []
    if hosts:
        facts.append((f" {hosts} host{'s' if hosts > 1 else ''}", ""))
    if lost:
        facts.append((f" {lost} lost", "$text-warning"))
    if going:
        facts.append((f" ● {going} run{'s' if going > 1 else ''}", "$text-success"))
    line = Content("").join([*tabs, *(Content.styled(words, style) for words, style in facts)])
    name = Content.styled(" distconsole ", "bold")
    return Content.assemble(name, line) if width >= line.cell_length + name.cell_length else line


def _tab(tab: Key, *, here: bool) -> Content:
    return _pressing(tab.key, f" [$text-accent]{tab.shown}[/] ", _marked(tab.label, here=here))


def _marked(label: str, *, here: bool) -> str:
    return f"[bold reverse]{label}[/] " if here else f"{label} "


def _pressing(key: str, *markup: str) -> Content:
    """Return ``markup`` as text on which a click is a press of ``key``."""
    return Content.from_markup("".join(markup)).stylize(Style.from_meta({PRESSES: key}))


@lru_cache(maxsize=64)
def keys_content(view: str, *, inside: bool, width: int) -> Content:
    """Return the keys that help in ``view``; its letters work only ``inside`` it."""
    shown = [key for key in KEYS if key not in TABS and (not key.views or view in key.views)]
    letters = [_entry(key, usable=inside) for key in shown if key.inside]
    others = [_entry(key, usable=True) for key in shown if not key.inside]
    where = "to the prompt" if inside else "into the view"
    swap = _pressing("escape", f" [$text-accent]Esc[/] {where} ")
    content = Content("")
    for entry in [swap, *(letters if inside else ()), *others, *(() if inside else letters)]:
        if content.cell_length + entry.cell_length > width:
            break
        content = Content.assemble(content, entry)
    return content


def _entry(key: Key, *, usable: bool) -> Content:
    name = "/" if key.key == "slash" else key.shown
    colours = ("$text-accent", "$foreground") if usable else ("$foreground 40%", "$foreground 40%")
    return _pressing(key.key, f" [{colours[0]}]{name}[/] [{colours[1]}]{key.label}[/] ")
