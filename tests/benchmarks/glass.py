"""A program in a pseudo-terminal and what stands on it, character by character, with the time at which
it came. It knows cursor moves and text, no colours, and judges nothing.
"""

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Self

COLUMNS, ROWS = 120, 36
PATIENCE_SECONDS = 30.0
QUIT = b"\x11"
"""Ctrl+Q, which ends our console and a bare Textual program."""

LEAVING_SECONDS = 20.0
LAST_CHARACTERS = 65536
SEQUENCE = re.compile(
    r"\x1b(?:\[(?P<given>[0-9;:<=>?]*)[ -/]*(?P<kind>[@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B]|[=>78M])"
)
UNFINISHED = re.compile(r"\x1b(?:\[[0-9;:<=>?]*[ -/]*|\][^\x07\x1b]*\x1b?|[()]?)?$")


class Glass:
    """The characters of a terminal's screen."""

    def __init__(self, columns: int = COLUMNS, rows: int = ROWS) -> None:
        self.lines = [[" "] * columns for _ in range(rows)]
        self._x = self._y = 0
        self._rest = ""

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(map("".join, self.lines))

    def take(self, data: str) -> None:
        """Do what ``data`` says; what is cut off at its end waits for the next."""
        data = self._rest + data
        cut = UNFINISHED.search(data)
        data, self._rest = (data[: cut.start()], data[cut.start() :]) if cut else (data, "")
        at = 0
        for found in SEQUENCE.finditer(data):
            self._write(data[at : found.start()])
            at = found.end()
            if found["kind"]:
                self._obey(found["kind"], found["given"])
        self._write(data[at:])

    def _obey(self, kind: str, given: str) -> None:
        match kind:
            case "H":
                line, _, column = given.partition(";")
                self._y, self._x = int(line or 1) - 1, int(column or 1) - 1
            case "C":
                self._x += int(given or 1)
            case "J":
                for line in self.lines:
                    line[:] = [" "] * len(line)
            case _:
                pass  # colours and modes, which move and show nothing

    def _write(self, text: str) -> None:
        for character in text:
            if character == "\n":
                self._y += 1
            elif character == "\r":
                self._x = 0
            elif self._y < len(self.lines) and self._x < len(self.lines[0]):
                self.lines[self._y][self._x] = character
                self._x += 1


class Watched:
    """A program in a pseudo-terminal; ends with the block.

    Args:
        argv: The program.
        environment: Variables beside ours.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.glass = Glass()
        self.bytes = 0
        """Bytes that it has written so far."""
        self.writes = 0
        self.last = ""
        """The last that it has written, also what scrolled away."""
        self._argv = argv
        # Compiled modules are kept, as they are for everybody.
        ours = {name: value for name, value in os.environ.items() if "DONTWRITE" not in name}
        self._environment = {
            **ours,
            **(environment or {}),
            "TERM": "xterm-256color",
            "COLORTERM": "truecolor",
        }
        self.pid = self._terminal = -1

    def __enter__(self) -> Self:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execve(self._argv[0], list(self._argv), self._environment)  # noqa: S606 - it is to be the program
        return self

    def __exit__(self, *_: object) -> None:
        self.press(QUIT)
        until = time.monotonic() + LEAVING_SECONDS
        while os.waitpid(self.pid, os.WNOHANG)[0] == 0:
            self.look(0.05)
            if time.monotonic() > until:
                os.kill(self.pid, 9)
        os.close(self._terminal)

    def press(self, keys: bytes) -> None:
        """Send what a terminal sends for keys."""
        os.write(self._terminal, keys)

    def look(self, seconds: float) -> bool:
        """Wait at most so long for it to write; return whether it did."""
        if not select.select([self._terminal], [], [], max(0.0, seconds))[0]:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:
            return False
        self.bytes += len(data)
        self.writes += 1
        text = data.decode("utf-8", "replace")
        self.last = (self.last + text)[-LAST_CHARACTERS:]
        self.glass.take(text)
        return True

    def look_for(self, seconds: float) -> None:
        """Read what it writes for so long."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            self.look(rest)

    def look_until(self, is_so: Callable[[str], object], what: str) -> float:
        """Read until the screen is as wanted; return when it was (``time.perf_counter``).

        Raises:
            TimeoutError: if it never is.
        """
        until = time.monotonic() + PATIENCE_SECONDS
        while not is_so(self.glass.text):
            if time.monotonic() > until:
                raise TimeoutError(f"{what} did not come to the screen:\n{self.glass.text}")
            self.look(0.1)
        return time.perf_counter()
