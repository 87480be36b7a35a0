"""Files that take a run's events, whole at the end or growing while it goes on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import Empty, Full, Queue
from typing import IO, Generic, Protocol, TypeVar

from distconsole.config.paths import replace_file
from distconsole.errors import ConfigError, ConsoleError, UnavailableError
from distconsole.formats.tables import CsvLines, Lines, make_table
from distconsole.model.names import count_text
from distconsole.model.requests import ExportTable
from distconsole.model.run_events import RunEvents

BUFFER_BYTES = 1 << 18
FLUSH_SECONDS = 1.0
"""Longest time before a line of a run that goes on reaches its readers."""
MAX_WAITING = 100_000
"""Events that wait for a service; what comes beyond them is left out and counted."""
MAX_REFUSAL_CHARS = 300
LEAVING_SECONDS = 15.0
"""Seconds for a service to take the rest when the run is over."""
File = TypeVar("File", bound="NewFile")


class Outlet(Protocol):
    """Takes events in order; one thread at a time uses it."""

    def take(self, event: RunEvents) -> None:
        """Write an event."""

    def flush(self) -> None:
        """Make the output so far visible to others."""

    def close(self) -> str:
        """Write the rest, put it in place, and return a description of the output."""

    def abandon(self) -> None:
        """Leave nothing half written; does nothing after ``close``."""


class NewFile:
    """A file that is put in place whole, or written in place where others follow it; raises ConfigError."""

    def __init__(self, path: Path, *, live: bool = False) -> None:
        self.path = path
        self._aside = None if live else path.with_name(f".{path.name}.part")
        with writable(path):
            if self._aside is not None:
                # A new file: a present one may be a link of another user's.
                self._aside.unlink(missing_ok=True)
            self.file: IO[bytes] = (self._aside or path).open(
                "wb" if live else "xb", buffering=BUFFER_BYTES
            )

    def flush(self) -> None:
        with writable(self.path):
            self.file.flush()

    def put(self) -> None:
        with writable(self.path):
            self.file.close()
            if self._aside is not None:
                self._aside.replace(self.path)

    def abandon(self) -> None:
        """Close it; the unfinished file is removed."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self._aside is not None:
            self._aside.unlink(missing_ok=True)


class LineFile(NewFile):
    def __init__(self, path: Path, lines: Lines, *, live: bool = False) -> None:
        super().__init__(path, live=live)
        self.count = 0
        self._lines = lines
        self._write(lines.beginning())

    def take(self, event: RunEvents) -> None:
        self._write(self._lines.of(event))

    def close(self) -> str:
        self._write(self._lines.ending())
        self.put()
        return f"{count_text(self.count, 'line')} written to {self.path}"

    def _write(self, lines: Iterator[str]) -> None:
        for line in lines:
            with writable(self.path):
                self.file.write(line.encode("utf-8", "replace") + b"\n")
            self.count += 1


class FileFolder(Generic[File]):
    def __init__(self, folder: Path, *, live: bool = False) -> None:
        self.folder, self.live = folder, live
        self.files: dict[str, File] = {}

    def flush(self) -> None:
        for file in self.files.values():
            file.flush()

    def abandon(self) -> None:
        for file in self.files.values():
            file.abandon()


class TableFolder(FileFolder[LineFile]):
    """A folder with every table as a CSV file of its name."""

    def __init__(self, folder: Path, *, live: bool = False) -> None:
        super().__init__(folder, live=live)
        with writable(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._by_kind: dict[type[RunEvents], list[LineFile]] = {}
        for name in ExportTable:
            if name is ExportTable.NUMBERS:
                continue  # the same figures once more, one a row
            table = make_table(name)
            file = LineFile(folder / f"{name}.csv", CsvLines(table), live=live)
            self.files[name] = file
            for kind in table.kinds:
                self._by_kind.setdefault(kind, []).append(file)

    def take(self, event: RunEvents) -> None:
        for file in self._by_kind.get(type(event), ()):
            file.take(event)

    def close(self) -> str:
        for file in self.files.values():
            file.close()
        rows = ", ".join(f"{name} {file.count - 1}" for name, file in self.files.items())
        return f"tables written to {self.folder} (rows: {rows})"


class BesideOutlet:
    """An outlet in its own thread: its caller never waits for the service behind it.

    The first refusal is reported; the outlet keeps refused events, and sends them with the next ones or at the end.
    """

    def __init__(
        self, outlet: Outlet, say: Callable[[str], None], service: str = "the service"
    ) -> None:
        self._outlet, self._say, self._service = outlet, say, service
        self._waiting: Queue[RunEvents | None] = Queue(MAX_WAITING)
        self._left_out = self._refused = 0
        self._closed = ""
        self._incomplete = True
        """True until the last figures are sent and the service is closed."""
        self._thread = threading.Thread(target=self._work, name="export", daemon=True)
        self._thread.start()

    def take(self, event: RunEvents) -> None:
        try:
            self._waiting.put_nowait(event)
        except Full:
            self._left_out += 1

    def flush(self) -> None:
        """Leave it to the thread."""

    def close(self) -> str:
        """Wait for the rest, and return the outlet's description; raises UnavailableError if not all was written."""
        with contextlib.suppress(Full):
            self._waiting.put(None, timeout=LEAVING_SECONDS)
        self._thread.join(LEAVING_SECONDS)
        alive = self._thread.is_alive()
        lacking = {
            "it does not answer": alive,
            "its package has ended the thread": self._incomplete and not (self._refused or alive),
            count_text(self._refused, "refusal"): self._refused,
            f"{count_text(self._left_out, 'event')} left out": self._left_out,
        }
        if self._incomplete or self._left_out or alive:
            why = ", ".join(words for words, count in lacking.items() if count)
            raise UnavailableError(f"not all was written to the service: {why}")
        return self._closed

    def abandon(self) -> None:
        """The service keeps its data."""

    def _work(self) -> None:
        flush_at = time.monotonic() + FLUSH_SECONDS
        while True:
            with contextlib.suppress(Empty):
                event = self._waiting.get(timeout=max(0.0, flush_at - time.monotonic()))
                if event is None:
                    break
                self._try(partial(self._outlet.take, event))
            if time.monotonic() >= flush_at:
                self._try(self._outlet.flush)
                flush_at = time.monotonic() + FLUSH_SECONDS
        self._incomplete = not self._try(self._close)

    def _close(self) -> None:
        self._closed = self._outlet.close()

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            with refusals(self._service):
                act()
        except ConsoleError as error:
            self._refused += 1
            if self._refused == 1:
                hint = f": {error.hint}" if error.hint else ""
                self._say(f"{error.message}; it is tried again{hint}")
            return False
        return True


@contextlib.contextmanager
def refusals(service: str) -> Iterator[None]:
    """Turn whatever a service's package raises into an UnavailableError of one line."""
    try:
        yield
    except ConsoleError:
        raise
    except Exception as error:  # noqa: BLE001 - packages of others raise what they like
        words = " ".join(str(error).split())[:MAX_REFUSAL_CHARS]
        kind = type(error).__name__
        raise UnavailableError(f"{service} fails: {kind}{words and f': {words}'}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file at once, so that no reader sees half of it; raises ConfigError if that fails."""
    with writable(path):
        replace_file(path, content, 0o666)


@contextlib.contextmanager
def writable(path: Path) -> Iterator[None]:
    """Turn an OSError of the disk into a ConfigError that names the file."""
    try:
        yield
    except OSError as error:
        why = error.strerror or os.strerror(error.errno or 0)
        raise ConfigError(f"{path} cannot be written: {why}", "name another file") from None
