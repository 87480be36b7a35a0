"""Where output goes: stdout is data, stderr is narration."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from itertools import groupby
from operator import itemgetter
from queue import Empty, SimpleQueue
from typing import NamedTuple, TextIO

from distconsole.errors import OutputError
from distconsole.model.time_text import span_text
from distconsole.ssh.asking import PERSON
from distconsole.text.output import Paint

STATUS_SECONDS = 0.25
"""A status line on a terminal is redrawn at most this often."""

AGE_SECONDS = 1.0
"""Seconds between updates of a status line's age."""

GATHER_SECONDS = 0.02
"""So long lines are gathered for one write; a system call a line would cost more than all the rest."""

MAX_HELD_CHARS = 1 << 20
"""More than this is not held for a reader that is slow: then whoever prints waits."""

WAIT_SECONDS = 0.002


class _To(Enum):
    OUT = "out"
    ERR = "err"
    ASK = "ask"
    STATUS = "status"


class _Said(NamedTuple):
    """Last text of the status line: its time, and the form of its age."""

    line: str = ""
    at: float = 0.0
    old_after: float | None = None
    seconds: float | None = None

    @property
    def ages(self) -> bool:
        return bool(self.line) and (self.old_after is not None or self.seconds is not None)

    def text(self, now: float) -> str:
        """Return the line at ``now``; empty if it is unchanged."""
        age = now - self.at
        if self.seconds is not None:
            return f"{self.line}, {span_text(self.seconds + age)}"
        is_old = self.old_after is not None and age > self.old_after
        return f"{span_text(age)} ago: {self.line}" if is_old else ""


class Streams:
    """The two streams of one invocation and the living status line on a terminal.

    Lines are written in their order by a thread that ends with ``close``. A signal handler may
    print, too: the queue is one that may be entered twice by a thread.
    """

    def __init__(
        self, out: TextIO, err: TextIO, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.out, self.err, self.clock = out, err, clock
        self.paint_out = Paint.for_stream(out)
        self.paint_err = Paint.for_stream(err)
        self._lines: SimpleQueue[tuple[_To, str] | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._closing = threading.Event()
        self._put_chars = self._taken_chars = 0
        self._failure: OutputError | None = None
        self._gone: set[_To] = set()
        self._status = ""
        self._said = _Said()
        self._status_at = float("-inf")

    @classmethod
    def standard(cls) -> Streams:
        return cls(sys.stdout, sys.stderr)

    @property
    def live(self) -> bool:
        return self.err.isatty() and os.environ.get("TERM") != "dumb"

    @property
    def width(self) -> int | None:
        """Columns of the terminal that stdout is; None if it is none."""
        return _columns(self.out) if self.out.isatty() else None

    def data(self, line: str) -> None:
        """Print ``line`` to stdout, if it is still read; raises OutputError if an earlier one was not written."""
        self._put(_To.OUT, line)

    def say(self, line: str) -> None:
        self._put(_To.ERR, line)

    def ask(self, question: str) -> None:
        """Write ``question`` to stderr; the answer is typed behind it."""
        self._put(_To.ASK, question)

    def status(
        self, line: str, *, old_after: float | None = None, seconds: float | None = None
    ) -> None:
        """Show ``line`` as the living last line of a terminal; elsewhere it is not shown.

        An empty line takes it away. After ``old_after`` seconds in which nothing newer came it says how old it is;
        with ``seconds`` it ends with how long something has gone on, and counts on.
        """
        if not self.live:
            return
        now = self.clock()
        self._said = _Said(line, now, old_after, seconds)
        if line and now - self._status_at < STATUS_SECONDS:
            return  # where it ages, it is shown with its age
        self._status_at = now
        self._put(_To.STATUS, self._said.text(now) or line)

    def ring(self, sequence: str) -> None:
        """Ring the terminal of stderr; without one do nothing."""
        if self.live:
            with suppress(OSError):  # the terminal is gone, and with it whoever would hear it
                self.err.write(sequence)
                self.err.flush()

    def close(self) -> None:
        """Write held output and take the status line away; raises OutputError as ``data``."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._closing.set()
            self._lines.put(None)
            writer.join()
            self._closing.clear()
        self._clear_status()
        self._raise_failure()

    def _put(self, to: _To, line: str) -> None:
        self._raise_failure()
        self._put_chars += len(line)
        self._lines.put((to, line))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="output", daemon=True)
            self._writer.start()
        while self._put_chars - self._taken_chars > MAX_HELD_CHARS and self._failure is None:
            time.sleep(WAIT_SECONDS)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _write_all(self) -> None:
        waiting: list[tuple[_To, str] | None] = []
        while None not in waiting:
            waiting = [self._next()]
            self._closing.wait(GATHER_SECONDS)
            waiting += [self._lines.get() for _ in range(self._lines.qsize())]
            self._write([each for each in waiting if each is not None])

    def _next(self) -> tuple[_To, str] | None:
        while self._said.ages and self._status:
            with suppress(Empty):
                return self._lines.get(timeout=AGE_SECONDS)
            text = self._said.text(self.clock())
            if text:
                with suppress(OSError):
                    self._write_to(_To.STATUS, [text])
        return self._lines.get()

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
            if PERSON.is_asked:
                return  # the question stands there
            width = _columns(self.err)
            self._status = texts[-1][: width - 1]
            self.err.write(f"\r\x1b[K{self._status}")
            self.err.flush()
            return
        self._clear_status()
        stream = self.out if to is _To.OUT else self.err
        # The question of a login stands in the line of the cursor.
        question = PERSON.question if stream.isatty() else ""
        before, after = ("\r\x1b[K", f"{question} ") if question else ("", "")
        stream.write(before + "\n".join(texts) + (" " if to is _To.ASK else "\n") + after)
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
