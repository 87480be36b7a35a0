"""Login questions on the screen: a password or a code is typed unseen and goes only to the login."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from distconsole.ssh.asking import LOOK_SECONDS, LoginQuestion, Wanted

KEYS = "Enter: log in   ·   Esc: leave the host out"
KEYS_OF_TOLD = "Esc: leave the host out"


class LoginScreen(ModalScreen[None]):
    """One question above everything else; ``answered`` takes the typed answer, None without one."""

    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    LoginScreen { align: center middle; }
    LoginScreen Vertical { width: 72; max-width: 90%; height: auto; padding: 0 1; border: round $text-warning; }
    LoginScreen Input { margin: 1 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+c", "decline", "Leave the host out", show=False, priority=True)
    ]

    def __init__(self, question: LoginQuestion, answered: Callable[[str | None], object]) -> None:
        super().__init__()
        self._question, self._answered = question, answered
        self._is_over = False

    def compose(self) -> ComposeResult:
        with Vertical() as frame:
            frame.border_title = f"log in to {self._question.host}"
            yield Static(self._question.text, markup=False)
            if not self._question.only_told:
                entry = Input(password=True)
                entry.cursor_blink = False
                yield entry
            yield Static(KEYS_OF_TOLD if self._question.only_told else KEYS, markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._end(event.value)

    def action_decline(self) -> None:
        self._end(None)

    def withdraw(self) -> None:
        """Close: the answer is no longer needed."""
        if self.is_current:
            self._end(None)

    def _end(self, answer: str | None) -> None:
        # A second Enter is on its way before the first one has taken the screen away.
        if self._is_over:
            return
        self._is_over = True
        self._answered(answer)
        self.dismiss()


class ScreenAsker:
    """Asks on the screen of ``app``, from the threads that log in."""

    def __init__(self, app: App[int]) -> None:
        self._app = app

    def can_ask(self) -> bool:
        return self._app.is_running

    def ask(self, question: LoginQuestion, wanted: Wanted) -> str | None:
        """See ``asking.Asker``; None if the console ends meanwhile."""
        answers: SimpleQueue[str | None] = SimpleQueue()
        screen = LoginScreen(question, answers.put)
        with suppress(RuntimeError):  # the console has ended
            self._app.call_from_thread(self._app.push_screen, screen)
            while wanted() and self._app.is_running:
                with suppress(Empty):
                    return answers.get(timeout=LOOK_SECONDS)
            self._app.call_from_thread(screen.withdraw)
        return None
