"""An application that costs little while it stands there all day. It knows nothing of what it shows."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Sequence
from typing import ClassVar, TypeVar, cast

from rich.console import RenderableType
from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.app import App
from textual.binding import Binding, BindingType
from textual.filter import LineFilter
from textual.screen import Screen

from distconsole.tui.canvas import Canvas, Stroke
from distconsole.tui.harmless import Harmless

Result = TypeVar("Result")

HARMLESS = Harmless()
COLLECTED_AFTER = (10_000, 20, 20)
"""The collector's thresholds; Python's own are (700, 10, 10)."""
ARENA_MAX = -8
"""What mallopt(3) of the GNU C library calls the most heaps that threads may have of their own."""


def share_one_heap() -> None:
    """Give all threads one heap, before they begin: Python runs one at a time, and each heap keeps what was freed."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # macOS has none
    if mallopt is not None:
        mallopt(ARENA_MAX, 1)


class SparingApp(App[Result]):
    """An application that writes to its terminal only what changed there, and seldom looks for garbage.

    Args:
        ansi_color: As ``App`` has it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+l", "draw_anew", "Draw anew", show=False, priority=True)
    ]

    def __init__(self, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._canvas = Canvas()

    def on_ready(self) -> None:
        """Spare the collector what was made for good, which is most of it: a search of all takes 50 ms and more."""
        if not self.is_headless:
            gc.freeze()
            gc.set_threshold(*COLLECTED_AFTER)

    def action_draw_anew(self) -> None:
        """Write all cells again: something else may have written to the terminal."""
        self._canvas.forget()
        self.screen.refresh()

    def on_resize(self) -> None:
        """A terminal may keep, move or lose what it showed when its size changes."""
        self._canvas.forget()

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Return what is done to every line that is drawn; last, nothing in it is obeyed."""
        return [*super().get_line_filters(), HARMLESS]

    def to_terminal(self, sequence: str) -> None:
        """Write a sequence that moves and shows nothing, such as a bell."""
        if sequence and self._driver is not None:
            self._driver.write(sequence)
            self._driver.flush()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, ChopsUpdate | LayoutUpdate):
            stroke = Stroke(self._canvas, renderable, self.size)
            renderable = cast("RenderableType", stroke)
        super()._display(screen, renderable)
