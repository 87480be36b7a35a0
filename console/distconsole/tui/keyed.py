"""The half of the application that keys and clicks go through. It knows no verb and draws nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from distconsole.grammar import VERBS
from distconsole.tui.answers import RestOfAnswer
from distconsole.tui.keymap import Keymap
from distconsole.tui.keys import SCREEN_VERBS
from distconsole.tui.prompt import Prompt
from distconsole.tui.sparing import LowOverheadApp
from distconsole.tui.title import PRESSES
from distconsole.tui.widgets.line_table import LineTable

if TYPE_CHECKING:
    from distconsole.tui.verbs import CommandDispatcher

FINDING = "a verb, a key, or words of what it does; Enter takes it, Escape goes back"


class Finder(CommandPalette):
    """Textual's palette, without the blinking that draws twice a second."""

    def on_mount(self) -> None:
        """Stand still."""
        self.query_one(Input).cursor_blink = False


class KeyedApp(LowOverheadApp[int]):
    """Finds what a key or a click means while a view is on the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual's own would leave at once, also where the key was given another meaning.
        Binding("ctrl+q", "key('ctrl+q')", "Quit", show=False, priority=True),
        Binding("escape", "swap_focus", "Prompt/view", show=False),
        Binding("ctrl+c", "interrupt", "Cancel", show=False, system=True),
    ]
    keymap: Keymap
    dispatcher: CommandDispatcher

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self.rest = RestOfAnswer()

    async def on_event(self, event: events.Event) -> None:
        """Take what happened; the rest of an answer goes nowhere else."""
        if isinstance(event, events.Key) and not event.is_forwarded:
            for key in self.rest.take(event):
                await super().on_event(key)
        else:
            await super().on_event(event)

    @property
    def view(self) -> str:
        """The name of the view on the screen."""
        raise NotImplementedError

    @property
    def shown_view(self) -> Widget:
        """The view on the screen."""
        raise NotImplementedError

    @property
    def is_replayed(self) -> bool:
        """Whether the view shows a past run, so that keys move through it."""
        raise NotImplementedError

    @property
    def is_inside(self) -> bool:
        """Whether keys go into the view, and not to the prompt or a question."""
        return self.focused is not None and self.query_one("#views") in self.focused.ancestors

    def on_key(self, event: events.Key) -> None:
        """Type the line of a key; letters mean something inside a view."""
        if len(self.screen_stack) > 1:
            return
        key = self.keymap.of(event.key, self.view)
        if key is None and self.is_inside:
            key = self.keymap.inside(event.key, self.view, replayed=self.is_replayed)
        if key is not None:
            event.stop()
            event.prevent_default()
            self.dispatcher.press(key)

    def action_key(self, pressed: str) -> None:
        """Type the line of a key."""
        key = self.keymap.of(pressed, self.view) or self.keymap.inside(
            pressed, self.view, replayed=self.is_replayed
        )
        if key is not None:
            self.dispatcher.press(key)

    @on(events.Click, "#title, #keys")
    def press_clicked(self, event: events.Click) -> None:
        """Do what the key does that was clicked."""
        key = event.style.meta.get(PRESSES)
        if key == "escape":
            self.action_swap_focus()
        elif key:
            self.action_key(key)

    def action_swap_focus(self) -> None:
        """Go from the prompt into the view and back."""
        prompt = self.query_one(Prompt)
        if self.focused is prompt:
            self.focus_view()
        else:
            prompt.focus()

    def focus_view(self) -> None:
        """Let keys go into the view, where they do not go there already."""
        view = self.shown_view
        if self.focused is not None and view in self.focused.ancestors_with_self:
            return  # such as to a list that was asked for while the view was not on the screen yet
        inside = (node for node in view.walk_children(Widget, with_self=True))
        usable = [node for node in inside if node.focusable and node.display]
        full = [node for node in usable if not isinstance(node, LineTable) or node.rows]
        self.set_focus(next(iter(full or usable), self.query_one(Prompt)))

    def action_command_palette(self) -> None:
        """Find everything by name."""
        if len(self.screen_stack) == 1:
            self.push_screen(Finder(id="--command-palette", placeholder=FINDING))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Everything that can be done, by name, from the tables of keys and verbs."""
        for key in self.keymap.keys:
            if key.works_in(self.view):
                yield SystemCommand(
                    f"{key.label} ({key.shown})",
                    key.line,
                    lambda key=key: self.dispatcher.press(key),
                )
        for verb, words in (*VERBS.items(), *SCREEN_VERBS.items()):
            yield SystemCommand(
                verb, words, lambda verb=verb: self.query_one(Prompt).offer(f"{verb} ")
            )
