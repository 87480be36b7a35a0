"""Claims about a person who has asked twice to leave a screen that is stuck: it ends, and says what may be left."""

import os
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from fakes import scenes
from testbed.keeper import wait_for as until

STUCK = """
import fcntl, os, sys, termios, threading
from contextlib import suppress
from distconsole.config.schema import Config
from distconsole.model import requests as ask
from distconsole.operations import last_resort
from distconsole.tui import app
from distconsole.tui.app import ConsoleApp
from fakes import scenes
from testbed.keeper import wait_for as until

last_resort.SAY_SECONDS = last_resort.END_SECONDS = 0.5
WHERE, KEYS = sys.argv[1:]
if KEYS == "keys":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

def perform(request, sessions, control):
    if isinstance(request, ask.Attach):
        yield from scenes.training()
        os.write(1, b"seen\\n")
        while control.asked is None:
            threading.Event().wait(0.01)

def stuck():
    os.write(1, b"stuck\\n")
    while True:
        with suppress(KeyboardInterrupt):
            threading.Event().wait()

class Staged(ConsoleApp):
    CSS_PATH = app.__file__.replace("app.py", "app.tcss")

    def __init__(self, request, *args, **named):
        super().__init__(request, *args, perform=perform, **named)
        if WHERE == "hosts":
            self.session.end = stuck

    def on_ready(self):
        os.write(1, b"ready\\n")
        if WHERE == "drawing":
            stuck()

    def on_unmount(self):
        if WHERE == "screen":
            stuck()

sys.exit(Staged.open(ask.Attach(run=scenes.RUN), Config()))
"""


class Terminal:
    """A pseudo-terminal, and all that was written to it."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.written = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            while data := os.read(self.master, 1 << 16):
                self.written += data
        except OSError:  # nobody has it open any more
            return

    def text(self) -> str:
        """Return what was written, once nobody writes any more."""
        if self.slave >= 0:
            os.close(self.slave)
        self.slave = -1
        self._thread.join(10)
        return self.written.decode(errors="replace")


def wait_for(lines: set[bytes], told: set[bytes], source: IO[bytes]) -> None:
    """Read what the program tells until it has told ``lines``."""
    while not lines <= told:
        line = source.readline()
        assert line, f"it ended, and has told only {told}"
        told.add(line)


def console(folder: Path, where: str, keys: str, tty: int) -> subprocess.Popen[bytes]:
    """Start the console of ``STUCK`` on the terminal ``tty``; what it tells comes on its stdout."""
    program = folder / "console.py"
    program.write_text(STUCK)
    return subprocess.Popen(
        [sys.executable, str(program), where, keys],
        stdin=tty,
        stdout=subprocess.PIPE,
        stderr=tty,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm-256color", "PYTHONPATH": "tests"},
    )


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.text()
    os.close(terminal.master)


@pytest.mark.parametrize(
    ("where", "first", "second", "exit_code"),
    [
        ("hosts", signal.SIGTERM, signal.SIGTERM, 143),
        ("screen", signal.SIGHUP, signal.SIGTERM, 143),
        ("drawing", signal.SIGTERM, signal.SIGINT, None),
        ("hosts", b"\x11", b"\x03", 130),
        ("screen", b"\x11", b"\x03", 130),
    ],
)
def test_who_asks_twice_leaves_a_screen_that_is_stuck(
    where: str,
    first: signal.Signals | bytes,
    second: signal.Signals | bytes,
    exit_code: int | None,
    terminal: Terminal,
    home: Path,
    tmp_path: Path,
) -> None:
    keys = isinstance(first, bytes)
    with console(tmp_path, where, "keys" if keys else "signals", terminal.slave) as process:
        try:
            assert process.stdout is not None
            told: set[bytes] = set()
            wait_for({b"ready\n", b"seen\n"}, told, process.stdout)
            for asked in (first, second):
                if isinstance(asked, bytes):
                    os.write(terminal.master, asked)
                else:
                    process.send_signal(asked)
                if asked is first:
                    wait_for({b"stuck\n"}, told, process.stdout)
            # Where nothing says that the first is heard of, both may come at once, in any order.
            assert process.wait(30) in ((130, 143) if exit_code is None else (exit_code,))
            if not keys:  # the kernel itself resets the terminal of a session that is over
                assert termios.tcgetattr(terminal.slave) == terminal.before
        finally:
            process.kill()
    screen, _left, words = terminal.text().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen
    assert f"not every host has said that {scenes.RUN} is over" in words
    assert f"distconsole stop {scenes.RUN}" in words


def test_a_console_that_was_stopped_begins_anew_on_its_terminal_and_once(
    terminal: Terminal, home: Path, tmp_path: Path
) -> None:
    with console(tmp_path, "nowhere", "keys", terminal.slave) as process:
        try:
            assert process.stdout is not None
            wait_for({b"ready\n", b"seen\n"}, set(), process.stdout)
            threads = Path(f"/proc/{process.pid}/task")
            before = len(list(threads.iterdir()))
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
            assert until(lambda: terminal.written.count(b"\x1b[?1049h") == 2)
            # Textual alone would begin beside what goes on: two that read keys, two that write.
            assert until(lambda: len(list(threads.iterdir())) == before)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 128 + signal.SIGTERM
        finally:
            process.kill()


def test_a_console_whose_terminal_is_closed_ends(home: Path, tmp_path: Path) -> None:
    master, slave = os.openpty()
    with (
        subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL) as window,
        console(tmp_path, "nowhere", "keys", slave) as process,
    ):
        os.close(master)
        os.close(slave)
        try:
            assert process.stdout is not None
            wait_for({b"ready\n", b"seen\n"}, set(), process.stdout)
            window.kill()
            assert process.wait(30) == 128 + signal.SIGHUP
        finally:
            window.kill()
            process.kill()
