"""Routes a pressed key to prompt, field, question or view, and translates keys of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import events, on
from textual.widget import Widget
from textual.widgets import Input

from distconsole.tui.chrome import PRESSES, Mode
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.keys import Key
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.terminal.low_overhead import PunctualScreen
from distconsole.tui.view_switcher import ViewSwitcher

if TYPE_CHECKING:
    from distconsole.tui.verbs import CommandDispatcher

PAGES = {
    **dict.fromkeys(("space", "ctrl+f", "f"), (1, 1.0)),
    **dict.fromkeys(("ctrl+b", "b"), (-1, 1.0)),
    **dict.fromkeys(("ctrl+d", "d"), (1, 0.5)),
    **dict.fromkeys(("ctrl+u", "u"), (-1, 0.5)),
}
"""Keys that scroll in vim and less: direction, and share of a page."""
SAME = {"j": "down", "k": "up", "h": "left", "l": "right", "g": "home", "G": "end"}
"""Meanings of vim's letters, unless they are bound."""
MEANT = {
    **dict.fromkeys(("K", "X", "D", "delete", "ctrl+k"), ("f8", "F8 stops a run")),
    **dict.fromkeys(("i", "a", "o", "A", "I"), ("colon", ": types a verb")),
    **dict.fromkeys(("P", "M", "T", "C"), ("s", "s sorts")),
    **dict.fromkeys(("backslash",), ("f", "f filters")),
    **dict.fromkeys(("asterisk", "number_sign"), ("slash", "/ finds")),
}
"""Unbound keys of htop, k9s, lazygit and vim: our key for the same, and its effect."""


class KeyScreen(PunctualScreen):
    """A screen whose view gets the keys, unless the prompt, a field or a question has the focus."""

    shortcuts: Shortcuts
    prompt: Prompt
    views: ViewSwitcher
    stands = False
    """True once all that a key may need is loaded."""
    _pressed = ""
    """The key before."""
    _early: list[events.Event] | None
    """Events from before the screen was complete; None once they are handled."""

    @property
    def dispatcher(self) -> CommandDispatcher:
        raise NotImplementedError

    @property
    def mode(self) -> Mode:
        focused = self.focused
        if focused is self.prompt:
            return Mode.PROMPT
        if isinstance(focused, Question):
            return Mode.ASK
        fills = self.views.view == "launch" and self.views.launch.is_filled_in
        return Mode.FORM if fills else Mode.VIEW

    @property
    def focus_chain(self) -> list[Widget]:
        """Tab goes through the panels of the view; the prompt has a key of its own."""
        shown = self.views.shown
        return [each for each in super().focus_chain if shown in each.ancestors_with_self]

    def take_key(self, event: events.Key) -> bool:
        """Handle a key in the view before the next one arrives, which may be for the prompt then."""
        mode, key = self.mode, event.key
        before, self._pressed = self._pressed, key
        if mode is Mode.PROMPT:
            self.prompt.keys_to_come += 1
        if mode is Mode.FORM and key == "ctrl+c" and not self._copies:
            self.dispatcher.interrupt()
            return True
        goes_on = key == "tab" or (key == "enter" and isinstance(self.focused, Input))
        if mode is Mode.FORM and (goes_on or key == "shift+tab"):
            self.focus_next() if goes_on else self.focus_previous()
            return True
        if mode is Mode.VIEW and key == before == "Z":
            self.dispatcher.run_command("quit", quiet=True)
        return mode is Mode.VIEW and self.press(key)

    def comes_early(self, event: events.Event) -> bool:
        """Keep an event until the screen is complete; return True if it was kept."""
        if self._early is not None:
            self._early.append(event)
        return self._early is not None

    def let_keys_in(self) -> None:
        """Accept keys from now on, the kept ones first."""
        self.app.call_later(self._take_early)

    async def _take_early(self) -> None:
        early, self._early = self._early or [], None
        for event in early:
            # It is kept once more if the one before it wants a view.
            await self.app.on_event(event)

    def focus_view(self) -> None:
        """Move the focus into the view, unless it is there already."""
        if self.focused is not None and self.views.shown in self.focused.ancestors_with_self:
            return  # such as to a list that was asked for while the view was not on the screen yet
        self.set_focus(self.views.first_focusable())

    @on(Question.Over)
    def back_to_view(self) -> None:
        """Return the focus to the current view, which may have changed since the question came."""
        if self.mode in (Mode.VIEW, Mode.FORM):
            self.focus_view()

    @on(events.Click, "#title, #keys")
    def press_clicked(self, event: events.Click) -> None:
        key = event.style.meta.get(PRESSES)
        if key:
            self.app.simulate_key(key)

    @on(Prompt.Paged)
    def page_view(self, event: Prompt.Paged) -> None:
        self.views.page(event.direction)

    def on_key(self, event: events.Key) -> None:
        """Handle a key that the focused widget did not take."""
        if self.press(event.key, letters=False) or self._press_by_habit(event.key):
            event.stop()
            event.prevent_default()

    def press(self, pressed: str, *, letters: bool = True) -> bool:
        """Type the line of a key, if it has one; ``letters`` includes those of the view."""
        views, keymap = self.views, self.shortcuts.keymap
        key = keymap.of(
            pressed, views.view, replayed=views.is_replayed, offered=views.cluster.offers_hosts
        )
        if key is None or (key.inside and not letters):
            return False
        self.dispatcher.press(key)
        return True

    @property
    def _copies(self) -> bool:
        """True if Ctrl-C has something to copy in a field."""
        return isinstance(self.focused, Input) and not self.focused.selection.is_empty

    def _press_by_habit(self, key: str) -> bool:
        if self.mode is not Mode.VIEW or key in self.active_bindings:
            return False
        if SAME.get(key) in self.active_bindings:
            self.app.simulate_key(SAME[key])
        elif key in PAGES:
            self.views.page(*PAGES[key])
        elif key in ("left", "h"):
            self.focus_previous()
        elif key in ("right", "l"):
            self.focus_next()
        elif key == "ctrl+r":
            self.prompt.open()
            self.prompt.action_search()
        elif key == "Z":
            self.prompt.tell("Z once more leaves")
        elif not (key.isdecimal() and self.press(f"f{key}")):
            name = Key(key, "", "").shown
            self.prompt.tell(f"{name} does nothing here: {self._what_does(key)}")
        return True

    def _what_does(self, key: str) -> str:
        ours, does = MEANT.get(key, ("", ""))
        if self.shortcuts.keymap.of(ours, self.views.view):
            return f"{does}, ? lists the keys"
        return "? lists the keys, : types a verb"
