"""Lines typed before, in memory and, with secrets masked, in a file; and the grey suggestion behind the cursor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from textual.suggester import Suggester

from distconsole.config.paths import replace_file
from distconsole.config.shortcuts import MAX_LINE_CHARS
from distconsole.grammar.secrets import mask_secrets
from distconsole.tui.terminal.sanitize import one_line

if TYPE_CHECKING:
    from distconsole.tui.prompt.completer import LineCompleter

MAX_HISTORY = 1000

MAX_READ_BYTES = 4 << 20


class History:
    """Typed lines, oldest first and each once, in the file at ``path``; without one for this session only.

    Several consoles may add to the file, and each sees the others' lines when it looks again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen: tuple[int, int, int] = (0, 0, 0)
        self.lines: list[str] = []
        self._whole: dict[str, str] = {}
        """Lines kept without their secrets -> the full line, for this session only."""
        self.refresh()

    def refresh(self) -> None:
        """Read lines that another console has added."""
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            found = self._path.stat()
            seen = (found.st_ino, found.st_size, found.st_mtime_ns)
            if seen != self._seen:
                self.lines = [self._whole.get(line, line) for line in self._read(self._path)]
                self._seen = seen

    def add(self, line: str) -> None:
        """Keep ``line`` as the newest; not one that begins with a blank. A disk that refuses costs only the history."""
        if not line.strip() or line[0].isspace() or len(line) > MAX_LINE_CHARS:
            return
        line = one_line(line).strip()
        self.refresh()
        if self.lines[-1:] == [line]:
            return
        self.lines = newest_once([*self.lines, line])
        if self._path is None:
            return
        kept = mask_secrets(line)
        if kept != line:
            self._whole[kept] = line
        try:
            self._append(self._path, kept)
        except OSError:
            self._path = None

    def before(self, start: str, position: int) -> int | None:
        """Return the place of the newest line before ``position`` that begins with ``start``."""
        return self._first(start, range(min(position, len(self.lines)) - 1, -1, -1))

    def after(self, start: str, position: int) -> int | None:
        """Return the place of the oldest line after ``position`` that begins with ``start``."""
        return self._first(start, range(position + 1, len(self.lines)))

    def _first(self, start: str, places: Iterable[int]) -> int | None:
        return next((place for place in places if self.lines[place].startswith(start)), None)

    def search(self, query: str) -> list[str]:
        """Return the lines with all words of ``query``, newest first; small letters match both."""
        words = query.split()
        as_typed = query != query.lower()
        fold = str if as_typed else str.lower
        return [line for line in reversed(self.lines) if all(w in fold(line) for w in words)]

    def _read(self, path: Path) -> list[str]:
        """Return the newest lines of the file, and cut it down to them when it has grown far beyond."""
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MAX_READ_BYTES))
            data = file.read(MAX_READ_BYTES)
        if size > MAX_READ_BYTES:
            data = data.partition(b"\n")[2]
        kept = data.decode("utf-8", errors="replace").split("\n")
        lines = newest_once(one_line(line).strip() for line in kept if len(line) <= MAX_LINE_CHARS)
        if len(kept) > 2 * MAX_HISTORY or size > MAX_READ_BYTES:
            replace_file(path, "".join(f"{line}\n" for line in lines).encode())
        return lines

    def _append(self, path: Path, line: str) -> None:
        """Add to the file's end, so that two consoles side by side lose nothing of each other's."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
            os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)


def newest_once(lines: Iterable[str]) -> list[str]:
    """Return ``lines`` without empty ones, each at its last place, at most ``MAX_HISTORY``."""
    last = dict.fromkeys(line for line in reversed(list(lines)) if line)
    return list(reversed(list(last)[:MAX_HISTORY]))


class Ghost(Suggester):
    """Shows the newest line of the history, else the first completion, behind the cursor."""

    def __init__(self, history: History, completer: Callable[[], LineCompleter]) -> None:
        super().__init__(use_cache=False, case_sensitive=True)
        self._history = history
        self._completer = completer

    async def get_suggestion(self, value: str) -> str | None:
        if not value.strip():
            return None
        place = self._history.before(value, len(self._history.lines))
        if place is not None:
            return self._history.lines[place]
        return next((found.line for found in self._completer().glance(value)), None)
