"""Chooses the theme, and passes its colours to widgets drawn before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from rich.color import ColorSystem
from rich.theme import Theme as RichTheme
from textual.theme import Theme
from textual.widget import Widget

from distconsole.errors import UsageError
from distconsole.tui.terminal.low_overhead import LowOverheadApp
from distconsole.tui.theme.themes import FAINT_SHARE, LOOKS, NAMES, first_theme, meanings
from distconsole.tui.widgets.lines import Words

COLOURS = {ColorSystem.TRUECOLOR: 1 << 24, ColorSystem.EIGHT_BIT: 256}
KEPT_BYTES = 100


def no_color() -> bool:
    return "NO_COLOR" in os.environ


class Appearance:
    """The themes of ``app``: ``asked`` is the flag's or the configuration's, ``kept`` the file with the one chosen here."""

    _redraw: Callable[[], None]

    def __init__(self, app: LowOverheadApp[int], asked: str | None, kept: Path | None) -> None:
        """Start ``app`` with the first theme; raises ``UsageError`` if the requested one is unknown."""
        self._app = app
        self._kept = kept
        for look in LOOKS.values():
            app.register_theme(look.theme)
        if asked is not None:
            self.named(asked)
        colours = COLOURS.get(app.console._color_system or ColorSystem.STANDARD, 16)
        app.begin_with(first_theme(asked, self._read(), colours=colours, no_color=no_color()))
        app.console.push_theme(self._meanings())

    def names(self) -> Iterable[str]:
        return self._app.available_themes

    def follow(self, redraw: Callable[[], None]) -> None:
        """Apply the colours of each theme chosen from now on; call ``redraw`` after each."""
        self._redraw = redraw
        self._app.theme_changed_signal.subscribe(self._app, self._take_colours)

    def choose(self, name: str) -> str:
        """Set and keep the theme called ``name``, the next one if empty; return a message; raises ``UsageError`` for an unknown one."""
        app = self._app
        if not name:
            place = NAMES.index(app.theme) if app.theme in NAMES else -1
            name = NAMES[(place + 1) % len(NAMES)]
        app.theme = self.named(name)
        if self._kept is not None:
            with contextlib.suppress(OSError):  # costs the next session's theme alone
                self._kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._kept.write_text(f"{app.theme}\n", encoding="utf-8")
        bare = " without colours, because NO_COLOR is set" if no_color() else ""
        return f"theme {app.theme}{bare}"

    def named(self, name: str) -> str:
        known = self._app.available_themes
        for whole in (name, f"textual-{name}"):
            if whole in known:
                return whole
        others = ", ".join(sorted(each for each in known if each not in NAMES))
        raise UsageError(f"there is no theme '{name}'", f"{', '.join(NAMES)}; {others}")

    def _meanings(self) -> RichTheme:
        look = LOOKS.get(self._app.theme)
        share = FAINT_SHARE if look is None else look.faint_share
        return meanings(self._app.theme_variables, share)

    def _take_colours(self, _theme: Theme) -> None:
        app = self._app
        app.console.pop_theme()
        app.console.push_theme(self._meanings())
        for widget in app.query(Widget):
            widget.notify_style_update()
            if isinstance(widget, Words):
                widget.update(widget.content, layout=False)
            widget.refresh()
        self._redraw()

    def _read(self) -> str | None:
        if self._kept is not None:
            with contextlib.suppress(OSError):
                with self._kept.open(encoding="utf-8", errors="replace") as file:
                    name = file.read(KEPT_BYTES).strip()
                return name if name in self._app.available_themes else None
        return None
