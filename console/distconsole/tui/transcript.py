"""Output of verbs in order, each under its own heading."""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice

from distconsole.errors import ConsoleError
from distconsole.text.output import Paint
from distconsole.tui.terminal.sanitize import one_line

MAX_SHOWN_LINES = 2000
MAX_KEPT_LINES = 20_000
MAX_NEWEST = 10

HELP_IN_SHELL = re.compile(r"see 'distconsole( [a-z]+)? --help'")
COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


class Voice:
    """One verb's ``Output`` into the transcript; errors name ``place``, the file and line of the request."""

    live = True
    width: int | None = None

    def __init__(self, transcript: Transcript, title: str = "", place: str = "") -> None:
        self.paint_out = Paint(enabled=True)
        self.paint_err = Paint(enabled=True)
        self.title = title
        self.place = place
        self._transcript = transcript
        self.now = ""
        self.aside = False
        """True while views show the output, too: it goes into the transcript alone."""

    def data(self, line: str) -> None:
        self._transcript.add(self, line.split("\n"), shown=not self.aside)

    def say(self, line: str) -> None:
        self.data(line)

    def show(self, line: str) -> None:
        """Show a line below every view; the transcript has it already."""
        self._transcript.show(line)

    def note(self, line: str) -> None:
        """Add a line that a view shows, too: it goes into the transcript alone."""
        self._transcript.add(self, [line], shown=False)

    def error(self, error: ConsoleError) -> None:
        place = f"{self.place}: " if self.place else ""
        words = f"{self.paint_err('error:', 'red', 'bold')} {place}{error.message}"
        if error.hint:
            from distconsole.tui.view_models.hints import console_hint  # noqa: PLC0415 - not before the first picture

            hint = HELP_IN_SHELL.sub(lambda found: f"see 'help{found[1] or ''}'", error.hint)
            hint = console_hint(hint)
            words += f"\n{self.paint_err('hint:', 'cyan')} {hint}"
        self.say(words)

    def status(
        self, line: str, *, old_after: float | None = None, seconds: float | None = None
    ) -> None:
        self.now = line

    def close(self) -> None:
        self.now = ""


class Transcript(Voice):
    """All lines; itself it is the screen's voice."""

    def __init__(self) -> None:
        super().__init__(self)
        self._lock = threading.Lock()
        self._newest: deque[str] = deque(maxlen=MAX_NEWEST)
        self._kept: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._speaker: Voice = self
        self.said = 0
        """Number of lines added."""

    def voice(self, title: str) -> Voice:
        voice = Voice(self, title, self.place)
        with self._lock:
            self._speaker = voice
        return voice

    def add(self, voice: Voice, lines: Iterable[str], *, shown: bool = True) -> None:
        """Add lines of ``voice``; not among the newest ones unless ``shown`` there."""
        with self._lock:
            if voice.title and voice is not self._speaker:
                self._put([f"\x1b[2m{voice.title}\x1b[0m"], shown=False)
            if voice.title:
                self._speaker = voice
            self._put(lines, shown=shown)

    def since(self, place: int) -> tuple[list[str], int]:
        """Return the kept lines from ``place`` on, at most ``MAX_SHOWN_LINES``, and the next place."""
        with self._lock:
            count = min(self.said - place, MAX_SHOWN_LINES)
            return [*islice(reversed(self._kept), count)][::-1], self.said

    def show(self, line: str) -> None:
        with self._lock:
            self._newest.append(line)

    def newest(self) -> list[str]:
        """Return the messages, of a line or more, for the space below every view since the last call."""
        with self._lock:
            messages = list(self._newest)
            self._newest.clear()
        return messages

    def text(self) -> str:
        with self._lock:
            lines = list(self._kept)
        return "".join(f"{one_line(COLOURS.sub('', line))}\n" for line in lines)

    def forget(self) -> None:
        with self._lock:
            self._kept.clear()
            self._newest.clear()

    def _put(self, lines: Iterable[str], *, shown: bool) -> None:
        lines = list(lines)
        if shown:
            self._newest.append("\n".join(lines))
        self._kept.extend(lines)
        self.said += len(lines)
