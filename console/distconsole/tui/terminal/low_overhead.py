"""An application that costs little while it stands there all day. It knows nothing of what it shows."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
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
SWITCHED_AFTER_SECONDS = 0.001
"""A thread that computes lets another one run after so long, instead of 5 ms: a key goes through three threads."""
SETTLED_SECONDS = 5.0
"""So long after the first screen what only the start needed is given back."""
ARENA_MAX = -8
"""What mallopt(3) of the GNU C library calls the most heaps that threads may have of their own."""


def share_one_heap() -> None:
    """Give all threads one heap, before they begin: Python runs one at a time, and each heap keeps what was freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # macOS has none
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)


def return_heap() -> None:
    """Give the system the pages of the heap on which nothing lies."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


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
        """Write a sequence that moves and shows nothing, such as a bell."""
        if isinstance(self.app, LowOverheadApp):
            self.app.to_terminal(sequence)


class LowOverheadApp(App[Result]):
    """An application that writes to its terminal only what changed there, and seldom looks for garbage.

    Args:
        input_priority: Is told of each key, and of its answer.
        ansi_color: As ``App`` has it.
    """

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
        """Whether a key was taken just now."""
        return time.monotonic() < self._hurried_until

    def _post_message(self, message: Message) -> Coroutine[None, None, bool]:
        # The thread that reads the terminal calls this; the rest runs when the application gets to it.
        if _is_pressed(message):
            self.input_priority.ask()
        return super()._post_message(message)

    async def on_event(self, event: events.Event) -> None:
        """Hurry after a key or a click."""
        if _is_pressed(event):
            self._hurried_until = time.monotonic() + HURRY_SECONDS
        await super().on_event(event)

    def on_ready(self) -> None:
        """Spare the collector what was made for good, which is most of it: a search of all takes 50 ms and more."""
        if not self.is_headless:
            sys.setswitchinterval(SWITCHED_AFTER_SECONDS)
            gc.collect()
            gc.freeze()
            gc.set_threshold(*COLLECTED_AFTER)
            self.set_timer(SETTLED_SECONDS, self._settle)

    def _settle(self) -> None:
        threading.Thread(target=self.give_back, name="settling", daemon=True).start()

    def give_back(self) -> None:
        """Give the system what only the start needed; called in a thread."""
        return_heap()

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
        """Write a sequence that moves and shows nothing, such as a bell."""
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


def _is_pressed(message: Message) -> bool:
    return isinstance(message, events.InputEvent) and not isinstance(message, events.MouseMove)
