"""The screen's interface for commands and views."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from textual.message import Message

from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.session import ConsoleSession
from distconsole.tui.view_switcher import ViewSwitcher
from distconsole.tui.watches import Watches
from distconsole.tui.widgets.messages import Messages


class Console(Protocol):
    session: ConsoleSession
    shortcuts: Shortcuts
    prompt: Prompt
    question: Question
    messages: Messages
    views: ViewSwitcher

    @property
    def watches(self) -> Watches:
        """The conditions that are watched."""

    @property
    def view(self) -> str:
        """The name of the view on the screen."""

    @property
    def is_running(self) -> bool:
        """True until the screen has ended."""

    def want(self, view: str, then: Callable[[], object]) -> None:
        """Call ``then`` once the view called ``view`` is made; later keys and lines wait for that."""

    def show_view(self, name: str) -> None:
        """Put the view called ``name`` on the screen."""

    def step_back(self) -> bool:
        """Go to the page or view before this one; return False without one."""

    def find(self, words: str, step: int = 1, *, typing: bool = False) -> None:
        """Go to the next match of ``words``, of the last words if empty; raises ConsoleError without a match.

        While ``typing``, each search starts at the reader's first place; empty words then end the search.
        """

    def redraw(self) -> None:
        """Draw at once, whatever was drawn before."""

    def post_message(self, message: Message, /) -> bool:
        """Send a message to the screen, from any thread."""

    def choose_theme(self, name: str) -> str:
        """Set a theme, the next one if ``name`` is empty; return a message, or raise UsageError."""

    def save_screenshot(self, path: str | None) -> str:
        """Write the screen into a file; return a message, or raise ConsoleError."""

    def candidates(self, verb: str) -> Iterable[str]:
        """Return what may follow a verb of the screen."""

    def set_up(self, line: str) -> bool:
        """Have a line that asks questions done on the terminal, and take its hosts; return whether that could be."""

    def leave(self) -> None:
        """Leave the console."""
