"""An application that costs little while it stands there all day."""

from __future__ import annotations

import gc
import time
from collections.abc import Coroutine, Sequence
from typing import ClassVar, TypeVar, cast

from rich.console import RenderableType
from textual import events
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.message import Message
from textual.screen import Screen

from distconsole.tui.terminal.diff import DiffUpdate, TerminalDiff
from distconsole.tui.terminal.input_priority import InputPriority
from distconsole.tui.terminal.sanitize import Sanitizer

Result = TypeVar("Result")

SANITIZER = Sanitizer()
COLLECTED_AFTER = (2_000, 10, 200)
"""The collector's thresholds; Python's own are (700, 10, 10). Each search is short: 20,000 objects take 3 ms."""
HURRY_SECONDS = 0.1
"""So long after a key what it changes is drawn as soon as it is known, not at the next of 60 moments a second."""


class PunctualScreen(Screen[object]):
    """A screen that draws the answer to a key at once; of very many keys those that half of the time is enough for."""

    _rests_until = 0.0

    async def _on_idle(self, event: events.Idle) -> None:
        app, began = self.app, time.monotonic()
        if isinstance(app, LowOverheadApp) and app.hurries and began >= self._rests_until:
            self._on_timer_update()
            now = time.monotonic()
            self._rests_until = now + (now - began)

    def to_terminal(self, sequence: str) -> None:
        if isinstance(self.app, LowOverheadApp):
            self.app.to_terminal(sequence)


class LowOverheadApp(App[Result]):
    """An application that writes to its terminal only what changed there, and seldom looks for garbage."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "draw_anew", "Draw anew", show=False, priority=True)
    ]

    def __init__(self, input_priority: InputPriority, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._terminal_diff = TerminalDiff()
        self.input_priority = input_priority
        self._hurried_until = 0.0

    @property
    def hurries(self) -> bool:
        return time.monotonic() < self._hurried_until

    def _post_message(self, message: Message) -> Coroutine[None, None, bool]:
        # The thread that reads the terminal calls this; the rest runs when the application gets to it.
        if _is_press(message):
            self.input_priority.ask()
        return super()._post_message(message)

    async def on_event(self, event: events.Event) -> None:
        if _is_press(event):
            self._hurried_until = time.monotonic() + HURRY_SECONDS
        await super().on_event(event)

    def on_ready(self) -> None:
        """Spare the collector what was made for good, which is most of it: a search of all takes 50 ms and more."""
        if not self.is_headless:
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECTED_AFTER)

    def action_draw_anew(self) -> None:
        """Write all cells again: something else may have written to the terminal."""
        self._terminal_diff.forget()
        self.screen.refresh()

    def on_resize(self) -> None:
        """A terminal may keep, move or lose what it showed when its size changes."""
        self._terminal_diff.forget()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what is done to every line that is drawn; last, nothing in it is obeyed."""
        return [*super().get_line_filters(), SANITIZER]

    def to_terminal(self, sequence: str) -> None:
        if sequence and self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            update = DiffUpdate(self._terminal_diff, renderable, self.size)
            renderable = cast("RenderableType", update)
        super()._display(screen, renderable)
        if self.hurries:
            self.input_priority.answer()


def _is_press(message: Message) -> bool:
    return isinstance(message, events.InputEvent) and not isinstance(message, events.MouseMove)
