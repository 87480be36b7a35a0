"""The application: its start and end, themes and palette; ``main_screen`` has the contents."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import termios
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import RenderableType
from rich.terminal_theme import TerminalTheme
from textual import events
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, Hit, Hits
from textual.screen import Screen
from textual.system_commands import SystemCommandsProvider
from textual.widgets import Input

from distconsole.config.paths import config_dir, state_dir
from distconsole.config.schema import Config
from distconsole.config.shortcuts import aliases_file
from distconsole.errors import ConfigError, UsageError
from distconsole.model import requests as ask
from distconsole.operations import perform
from distconsole.operations.last_resort import STDERR, WRITE_SECONDS, LastResort
from distconsole.ssh.asking import PERSON
from distconsole.tui.chrome import Mode
from distconsole.tui.login import ScreenAsker
from distconsole.tui.main_screen import ConsoleScreen
from distconsole.tui.prompt.keys import PROMPT_VERBS
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.session import ConsoleSession
from distconsole.tui.terminal.low_overhead import LowOverheadApp
from distconsole.tui.theme.appearance import Appearance, no_color
from distconsole.tui.theme.themes import LOOKS, PICTURES
from distconsole.tui.view_models.hosts import Clocks

if TYPE_CHECKING:
    from distconsole.tui.tasks import Perform

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STDIN, STDOUT = 0, 1
LFLAG = 3

NO_KEY_PROTOCOL = "\x1b[=0u"
"""Without it, terminals with Kitty's key protocol send Ctrl-C as an escape sequence."""

AS_BEFORE = (
    b"\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?2004l\x1b[?2048l\x1b[?1004l\x1b[?7h"
    b"\x1b[<u\x1b[?1049l\x1b[?25h"
)
"""Turns off mouse, paste, size and focus reports, wraps lines, and restores keys, screen and cursor."""

SUSPENDED = "distconsole is suspended; runs go on without it; 'fg' brings it back"
FINDING = "a verb, a key, or words of what it does; Enter takes it, Escape goes back"

DESCRIBED = 0.01
"""Score of a match in the description: less than any name's."""


class Palette(CommandPalette):
    """Textual's, with a steady cursor: a blink costs two drawings a second."""

    def on_mount(self) -> None:
        self.query_one(Input).cursor_blink = False


class Everything(SystemCommandsProvider):
    """The palette: searches the system commands by name and by description."""

    async def search(self, query: str) -> Hits:
        """Yield commands whose name matches ``query``, then those whose description has all of its words."""
        matcher, words = self.matcher(query), query.lower().split()
        for name, does, callback, _ in self.app.get_system_commands(self.screen):
            match = matcher.match(name)
            if match <= 0 and all(word in does.lower() for word in words):
                match = DESCRIBED
            if match > 0:
                yield Hit(match, matcher.highlight(name), callback, help=does)


class ConsoleApp(LowOverheadApp[int]):
    """distconsole, full screen; ``theme`` None takes the kept one, else one that suits the terminal."""

    CSS_PATH = "app.tcss"
    TITLE = "distconsole"
    AUTO_FOCUS: ClassVar[str | None] = None
    COMMANDS = {Everything}  # noqa: RUF012 - as App has it
    BINDINGS: ClassVar[list[BindingType]] = [
        # Textual's own binding would leave at once, even if the user has bound the key to something else.
        Binding("ctrl+q", "press('ctrl+q')", "Quit", show=False, priority=True),
        Binding("escape", "screen.step_back", "Back", show=False),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("ctrl+c", "screen.interrupt", "Cancel", show=False, system=True),
    ]

    _screen_loop: asyncio.AbstractEventLoop | None = None
    """The event loop for signal handlers that ask to leave."""
    _suspends = False
    """True while it has suspended itself, and so resumes by itself."""

    def __init__(
        self,
        request: ask.Request,
        history: Path | None = None,
        clocks: Clocks | None = None,
        perform: Perform = perform,
        theme: str | None = None,
        theme_kept: Path | None = None,
        shortcuts: Shortcuts | None = None,
        startup: Path | None = None,
    ) -> None:
        self.session = ConsoleSession(getattr(request, "where", ask.Where()), clocks, perform)
        # Without colours the filter that takes them away must be the one for the terminal's own.
        super().__init__(self.session.input_priority, ansi_color=True if no_color() else None)
        self.main = ConsoleScreen(
            self.session,
            shortcuts or Shortcuts(Config()),
            Appearance(self, theme, theme_kept),
            history,
            startup,
            request,
        )

    @classmethod
    def open(cls, request: ask.Request, config: Config) -> int:
        """Run the application and return the exit code; raises ConsoleError if the hosts given cannot be read."""
        state, asked = state_dir(), getattr(request, "theme", None)
        try:
            app = cls(
                request,
                state / "history",
                theme=asked or config.theme,
                theme_kept=state / "theme",
                shortcuts=Shortcuts(config, aliases_file()),
                startup=config_dir() / "startup" if wants_startup(request, config) else None,
            )
        except UsageError as error:
            if asked:
                raise
            files = ", ".join(map(str, config.files))
            raise ConfigError(f"{files}: theme: {error.message}", error.hint) from None
        session = app.session
        for words in config.passed:
            session.transcript.say(words)
        if not isinstance(request, ask.Demo):
            session.begin(config, asks=isinstance(request, ask.OpenConsole))
        with Leaving(app), PERSON.asked_by(ScreenAsker(app)):
            try:
                code = app.run() or 0
                # Before a demo that goes on is stopped: to leave it is no failure.
                code = code if session.first is None else session.first.exit_code
            finally:
                going = session.end()
        with contextlib.suppress(OSError):  # the terminal is gone
            stay = (
                f"{run} goes on without the console: distconsole attach {run}" for run in going
            )
            for line in (*stay, *session.farewell()):
                print(line, flush=True)  # noqa: T201
        return app.return_code or code

    def get_default_screen(self) -> Screen[object]:
        return self.main

    async def _check_bindings(self, key: str, priority: bool = False) -> bool:
        # Textual runs a binding once the key has gone through the queues of the focused widget and of all around
        # it; our own keys are handled before that, and would find the cursor where it was.
        if await super()._check_bindings(key, priority):
            return True
        in_view = len(self.screen_stack) == 1 and self.main.mode is Mode.VIEW
        return priority and in_view and await super()._check_bindings(key)

    async def on_event(self, event: events.Event) -> None:
        """Handle an event; the rest of an answer's word is dropped."""
        if isinstance(event, events.InputEvent | events.Paste) and self.main.comes_early(event):
            return
        if isinstance(event, events.Key) and not event.is_forwarded:
            for key in self.main.question.rest.take(event):
                self.hurry()
                if len(self.screen_stack) > 1 or not self.main.take_key(key):
                    await super().on_event(key)
            return
        alone = len(self.screen_stack) == 1
        if isinstance(event, events.Paste) and alone and self.main.mode is Mode.VIEW:
            self.main.prompt.open()
        await super().on_event(event)

    def on_mount(self) -> None:
        self._screen_loop = asyncio.get_running_loop()
        if not self.is_headless:
            signal.signal(signal.SIGCONT, self._on_continued)

    def _on_continued(self, _number: int, _frame: FrameType | None) -> None:
        """Restart drawing after SIGCONT; Textual's own handler runs beside the screen's work, even on a closed terminal."""
        if self._screen_loop is not None and not self._suspends:
            self._screen_loop.call_soon_threadsafe(self._begin_anew)

    def _begin_anew(self) -> None:
        if self.return_code is None and _attributes() is not None:
            with self.suspend():
                pass
            self.action_draw_anew()

    @property
    def stands(self) -> bool:
        return self._screen_loop is not None

    def ask_to_leave(self, code: int) -> None:
        """Leave soon, with ``code``; from any thread."""
        if self._screen_loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed: that is left already
                self._screen_loop.call_soon_threadsafe(partial(self.exit, return_code=code))

    def exit(
        self,
        result: int | None = None,
        return_code: int = 0,
        message: RenderableType | None = None,
    ) -> None:
        """Leave; from then on Ctrl-C is a signal, which ends even a process that reads no keys."""
        super().exit(result, return_code, message)
        if self._driver is not None and not self.is_headless:
            let_keys_signal()
            self._driver.write(NO_KEY_PROTOCOL)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        """Return the colours of pictures for Textual's own themes."""
        return {name: row[0] for name, row in PICTURES.items()}

    @property
    def ansi_theme(self) -> TerminalTheme:
        look = LOOKS.get(self.theme)
        return look.ansi if look is not None and look.ansi is not None else super().ansi_theme

    def action_press(self, pressed: str) -> None:
        self.main.press(pressed)

    def action_suspend_process(self) -> None:
        """Give the terminal back to the shell until the shell resumes the console."""
        driver, say = self._driver, self.session.transcript.say
        if driver is None or not driver.can_suspend or os.getpgrp() == os.getsid(0):
            say("Ctrl+Z: there is no shell to go back to; Ctrl+Q leaves, and runs go on")
            return
        self._suspends = True
        with self.suspend():
            sys.stdout.write(f"{SUSPENDED}\n")
            sys.stdout.flush()
            os.killpg(0, signal.SIGTSTP)
        self._suspends = False
        self.action_draw_anew()
        say("the console goes on; runs did so meanwhile")

    def action_command_palette(self) -> None:
        if len(self.screen_stack) == 1:
            self.push_screen(Palette(id="--command-palette", placeholder=FINDING))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Return all commands by name, from the tables of keys and verbs."""
        main = self.main
        for key in main.shortcuts.keymap.keys:
            if key.works_in(main.view):
                yield SystemCommand(
                    f"{key.label} ({key.shown})", key.does, partial(main.dispatcher.press, key)
                )
        for verb, words in PROMPT_VERBS.items():
            yield SystemCommand(verb, words, partial(main.prompt.offer, f"{verb} "))


def wants_startup(request: ask.Request, config: Config) -> bool:
    """True if the start-up file is run: by default, unless the request or the configuration disables it."""
    asked = getattr(request, "startup", None)
    return (config.startup if asked is None else asked) is not False


class Leaving:
    """Leaves ``app`` at a signal to end or a closed terminal, and restores the terminal; at a second signal by force.

    A thread reads the signals: a stuck main thread runs no handler.
    """

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._asked = False
        self._attributes = _attributes()
        self._last = LastResort(app.session.left_behind, restore=self._restore)
        heard, self._hearing = os.pipe()
        os.set_blocking(self._hearing, False)
        self._fd_before = signal.set_wakeup_fd(self._hearing, warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(heard,), name="signals", daemon=True).start()
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __enter__(self) -> Leaving:
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd_before)
        os.close(self._hearing)
        self._last.close()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if not self._app.stands:
            sys.exit(128 + number)

    def _hear(self, heard: int) -> None:
        with open(heard, "rb", buffering=0) as signals:
            while number := signals.read(1):
                if number[0] in SIGNALS:
                    self._take_signal(number[0])

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGINT and self._app.session.lends_terminal:
            return
        asked, self._asked = self._asked, True
        lost = number == signal.SIGHUP and mute_lost_terminal()
        if not asked and self._app.return_code is None:
            self._app.ask_to_leave(128 + number)
            if not lost:
                return
        self._last.begin(128 + number)

    def _restore(self) -> None:
        if self._attributes is None:
            return
        with contextlib.suppress(termios.error):
            termios.tcsetattr(STDIN, termios.TCSANOW, self._attributes)
        if select.select([], [STDERR], [], WRITE_SECONDS)[1]:  # where Textual draws
            os.write(STDERR, AS_BEFORE)


def mute_lost_terminal() -> bool:
    """Send output of a closed terminal to /dev/null and return True: Textual would wait for its failed writer."""
    lost = False
    for stream in (STDOUT, STDERR):
        try:
            os.write(stream, b"")
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream)
            os.close(nowhere)
            lost = True
    return lost


def let_keys_signal() -> None:
    """Make Ctrl-C a signal again, which works even if the screen is stuck."""
    attributes = _attributes()
    if attributes is not None:
        attributes[LFLAG] |= termios.ISIG
        with contextlib.suppress(termios.error):
            termios.tcsetattr(STDIN, termios.TCSANOW, attributes)


def _attributes() -> list[Any] | None:
    try:
        return termios.tcgetattr(STDIN)
    except (OSError, termios.error):
        return None
