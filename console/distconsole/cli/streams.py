"""Where output goes: stdout is data, stderr is narration, and a reader that left stops nothing."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import TextIO

from distconsole.errors import OutputError
from distconsole.model.time_text import span_text
from distconsole.text.paint import Paint

STATUS_SECONDS = 0.25
"""A status line on a terminal is redrawn at most this often."""

AGE_SECONDS = 1.0
"""How often a status line that ages says anew how old it is."""

GATHER_SECONDS = 0.02
"""So long lines are gathered for one write; a system call a line would cost more than all the rest."""

MAX_HELD_CHARS = 1 << 20
"""More than this is not held for a reader that is slow: then whoever prints waits."""

WAIT_SECONDS = 0.002


class _To(Enum):
    OUT = "out"
    ERR = "err"
    STATUS = "status"


@dataclass(slots=True)
class Streams:
    """The two streams of one invocation and the living status line on a terminal.

    Lines are written in their order by a thread that ends with ``close``. A signal handler may
    print, too: the queue is one that may be entered twice by a thread.
    """

    out: TextIO
    err: TextIO
    clock: Callable[[], float] = time.monotonic
    paint_out: Paint = field(init=False)
    paint_err: Paint = field(init=False)
    _lines: deque[tuple[_To, str]] = field(default_factory=deque)
    _wakes: SimpleQueue[None] = field(default_factory=SimpleQueue)
    _writer: threading.Thread | None = None
    _resting: bool = True
    """The writer waits to be woken, or there is none."""
    _closing: bool = False
    _put_chars: int = 0
    _taken_chars: int = 0
    _failure: OutputError | None = None
    _status: str = ""
    _said: str = ""
    """The whole of what the status line was to say last."""
    _old_after: float | None = None
    _status_at: float = float("-inf")
    _gone: set[_To] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.paint_out = Paint.for_stream(self.out)
        self.paint_err = Paint.for_stream(self.err)

    @classmethod
    def standard(cls) -> Streams:
        """The process's own streams."""
        return cls(sys.stdout, sys.stderr)

    @property
    def live(self) -> bool:
        """True if a status line may be redrawn in place."""
        return self.err.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Columns of the terminal that stdout is; None if it is none."""
        return _columns(self.out) if self.out.isatty() else None

    def data(self, line: str) -> None:
        """Print ``line`` to stdout. If the reader has gone (``| head``), the rest is dropped.

        Raises:
            OutputError: if an earlier line could not be written (a full disk).
        """
        self._put(_To.OUT, line)

    def say(self, line: str) -> None:
        """Print ``line`` to stderr.

        Raises:
            OutputError: as ``data``.
        """
        self._put(_To.ERR, line)

    def status(self, line: str, *, old_after: float | None = None) -> None:
        """Show ``line`` as the living last line of a terminal; elsewhere it is not shown.

        An empty line takes it away. After ``old_after`` seconds in which nothing newer came it says how old it is.
        """
        now = self.clock()
        if not self.live or (line and now - self._status_at < STATUS_SECONDS):
            return
        self._status_at, self._old_after, self._said = now, old_after, line
        self._put(_To.STATUS, line)

    def close(self) -> None:
        """Write what is held and take the status line away. What is printed later is written, too.

        Raises:
            OutputError: as ``data``.
        """
        writer, self._writer = self._writer, None
        if writer is not None:
            self._closing = True
            self._wakes.put(None)
            writer.join()
            self._closing = False
        self._clear_status()
        self._raise_failure()

    def _put(self, to: _To, line: str) -> None:
        self._lines.append((to, line))
        self._put_chars += len(line)
        if self._resting:
            self._wake()
        elif self._put_chars - self._taken_chars > MAX_HELD_CHARS:
            self._await_room()

    def _wake(self) -> None:
        self._raise_failure()
        self._resting = False
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="output", daemon=True)
            self._writer.start()
        else:
            self._wakes.put(None)

    def _await_room(self) -> None:
        while self._put_chars - self._taken_chars > MAX_HELD_CHARS and self._failure is None:
            time.sleep(WAIT_SECONDS)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write_all(self) -> None:
        """Write until closed (on the writer's thread)."""
        while True:
            self._write(self._what_waits())
            if self._closing:
                break
            self._resting = True
            # What came before that was said has woken nobody.
            if not self._lines:
                self._rest()
            self._resting = False
            if not self._closing:
                time.sleep(GATHER_SECONDS)
        self._write(self._what_waits())
        self._resting = True

    def _rest(self) -> None:
        """Wait to be woken."""
        while self._old_after is not None and self._status:
            with suppress(Empty):
                self._wakes.get(timeout=AGE_SECONDS)
                return
            age = self.clock() - self._status_at
            if age > self._old_after:
                with suppress(OSError):
                    self._write_to(_To.STATUS, [f"{span_text(age)} ago: {self._said}"])
        self._wakes.get()

    def _what_waits(self) -> list[tuple[_To, str]]:
        # Others append meanwhile: what they add is for the next time, so that this ends.
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def _write(self, lines: list[tuple[_To, str]]) -> None:
        for to, group in groupby(lines, key=itemgetter(0)):
            texts = [text for _, text in group]
            try:
                self._write_to(to, texts)
            except BrokenPipeError:
                self._give_up(to)
            except OSError as error:
                self._give_up(to)
                name = "stdout" if to is _To.OUT else "stderr"
                self._failure = OutputError(
                    f"{name} cannot be written: {error.strerror or error}",
                    "a run that was started goes on: distconsole attach",
                )
                self._resting = True
            self._taken_chars += sum(map(len, texts))

    def _give_up(self, to: _To) -> None:
        """Let what else is written to a stream vanish."""
        self._gone.add(to)
        # The interpreter flushes once more at exit, which must not fail again.
        stream = self.out if to is _To.OUT else self.err
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)

    def _write_to(self, to: _To, texts: list[str]) -> None:
        if to in self._gone:
            return
        if to is _To.STATUS:
            width = _columns(self.err)
            self._status = texts[-1][: width - 1]
            self.err.write(f"\r\x1b[K{self._status}")
            self.err.flush()
            return
        self._clear_status()
        stream = self.out if to is _To.OUT else self.err
        stream.write("\n".join(texts) + "\n")
        stream.flush()

    def _clear_status(self) -> None:
        if self._status:
            self.err.write("\r\x1b[K")
            self.err.flush()
            self._status = ""


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
