"""The person at the terminal, who answers a login's question for a password or a code: one question at a time.

Until a screen takes the questions they are put on the controlling terminal, as ssh puts them.
"""

from __future__ import annotations

import atexit
import math
import os
import re
import select
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from distconsole.ssh.plain import plain_text

LOOK_SECONDS = 0.2
"""Seconds between a waiting login's checks that its answer is still wanted."""
PATIENCE_SECONDS = 20.0
"""A question that waited this long for others is not shown: its server may hang up on a slow login (LoginGraceTime)."""
MAX_ANSWER_BYTES = 4096
MAX_QUESTION_CHARS = 400
LFLAG = 3
ERASE = "\r\x1b[K"


@dataclass(frozen=True, slots=True)
class LoginQuestion:
    """A login's question, in ssh's words; ``only_told`` if no answer is typed, as for a touch of a key."""

    host: str
    words: str
    only_told: bool = False

    @property
    def text(self) -> str:
        """The question in one line, free of escapes: a server words it."""
        words = " ".join(plain_text(self.words).split())[:MAX_QUESTION_CHARS]
        named = re.search(rf"(?<![\w.-]){re.escape(self.host)}(?![\w.-])", words)
        return words if named else f"{self.host}: {words}"


class NotPutError(Exception):
    """The question was not shown: earlier ones took so long that its server may have given up."""


Wanted = Callable[[], bool]
"""True while an answer is awaited."""


class Asker(Protocol):
    def can_ask(self) -> bool: ...

    def ask(self, question: LoginQuestion, wanted: Wanted) -> str | None:
        """Return the typed answer; None without one, or once it is not ``wanted`` any more."""
        ...


class Person:
    """Puts the questions of many logins to one person, in turn, and counts the time that takes."""

    def __init__(self, asker: Asker, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._asker, self._patience_seconds = asker, patience_seconds
        self._turn = threading.RLock()
        self._counting = threading.Lock()
        self._waiting = 0
        self._since = 0.0
        self._asked: list[tuple[float, float]] = []
        """Times of questions, from and until, in monotonic seconds."""
        self._has_left = False
        self.question = ""
        """The one that stands there unanswered, in one line; empty if there is none."""

    @property
    def is_asked(self) -> bool:
        return self._waiting > 0

    def can_answer(self) -> bool:
        return not self._has_left and self._asker.can_ask()

    def leave(self) -> None:
        """Answer nothing any more, as after Ctrl-C; may be called by a signal handler."""
        self._has_left = True

    def ask(self, question: LoginQuestion, wanted: Wanted) -> str | None:
        """As ``Asker.ask``; waits until earlier questions are answered, and raises NotPutError if that is too long."""
        began = time.monotonic()

        def stays() -> bool:
            return wanted() and not self._has_left

        with self._count(), self.turn():
            if self._has_left:
                return None
            if time.monotonic() - began > self._patience_seconds or not wanted():
                raise NotPutError
            try:
                self.question = "" if question.only_told else question.text
                return self._asker.ask(question, stays)
            finally:
                self.question = ""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until earlier questions are answered; then only this thread asks."""
        with self._count():
            self._turn.acquire()
        try:
            yield
        finally:
            self._turn.release()

    def working_seconds(self, at: float | None = None) -> float:
        """Return monotonic seconds without the time of questions: no deadline runs then.

        Args:
            at: A moment of ``time.monotonic``; None is now.
        """
        with self._counting:
            asked = [*self._asked, *([(self._since, math.inf)] if self._waiting else [])]
        moment = time.monotonic() if at is None else at
        return moment - sum(max(0.0, min(end, moment) - start) for start, end in asked)

    @contextmanager
    def asked_by(self, asker: Asker) -> Iterator[None]:
        before, self._asker = self._asker, asker
        try:
            yield
        finally:
            self._asker = before

    @contextmanager
    def _count(self) -> Iterator[None]:
        with self._counting:
            self._waiting += 1
            if self._waiting == 1:
                self._since = time.monotonic()
        try:
            yield
        finally:
            with self._counting:
                self._waiting -= 1
                if not self._waiting:
                    self._asked.append((self._since, time.monotonic()))


class TerminalAsker:
    """The controlling terminal, whatever the standard streams are; it does not echo answers."""

    def can_ask(self) -> bool:
        """Return True if there is one and we are in its foreground: a read from the background would stop us."""
        with suppress(OSError), _terminal() as terminal:
            return os.tcgetpgrp(terminal) == os.getpgrp()
        return False

    def ask(self, question: LoginQuestion, wanted: Wanted) -> str | None:
        try:
            with _terminal() as terminal:
                return self._read(terminal, question, wanted)
        except (OSError, termios.error):
            return None

    def _read(self, terminal: int, question: LoginQuestion, wanted: Wanted) -> str | None:
        shown = question.text + ("\n" if question.only_told else " ")
        with _Unseen(terminal) as unseen:  # which discards input typed before the question
            _write(terminal, f"{ERASE}{shown}")
            typed = b""
            while wanted():
                if unseen.renew():
                    _write(terminal, f"{ERASE}{shown}")
                    typed = b""
                if not select.select([terminal], [], [], LOOK_SECONDS)[0]:
                    continue
                part = os.read(terminal, MAX_ANSWER_BYTES)
                typed += part
                if question.only_told:
                    typed = b""
                elif not part or typed.endswith(b"\n") or len(typed) > MAX_ANSWER_BYTES:
                    _write(terminal, "\n")
                    break
            else:
                _write(terminal, "" if question.only_told else ERASE)
        # A terminal need not encode in UTF-8; the text encodes to the same bytes.
        return typed[:-1].decode("utf-8", "surrogateescape") if typed.endswith(b"\n") else None


def _write(terminal: int, text: str) -> None:
    os.write(terminal, text.encode())


@contextmanager
def _terminal() -> Iterator[int]:
    descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


class _Unseen:
    """Turns the terminal's echo off and restores it afterwards, also if the program ends meanwhile."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._before: list[Any] = termios.tcgetattr(terminal)
        self._silent = list(self._before)
        self._silent[LFLAG] &= ~termios.ECHO
        self._changing = threading.Lock()
        self._is_over = False

    def __enter__(self) -> Self:
        atexit.register(self._leave)
        termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._silent)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        atexit.unregister(self._leave)

    def renew(self) -> bool:
        """Turn the echo off again if a shell has turned it on, by Ctrl-Z and fg; return True if it had."""
        with self._changing:
            attributes: list[Any] = termios.tcgetattr(self._terminal)
            is_seen = bool(attributes[LFLAG] & termios.ECHO)
            if self._is_over or not is_seen or os.tcgetpgrp(self._terminal) != os.getpgrp():
                return False
            termios.tcsetattr(self._terminal, termios.TCSAFLUSH, self._silent)
            return True

    def _leave(self) -> None:
        self._restore()
        with suppress(OSError):
            _write(self._terminal, ERASE)

    def _restore(self) -> None:
        with self._changing, suppress(OSError, termios.error):
            self._is_over = True
            termios.tcsetattr(self._terminal, termios.TCSANOW, self._before)


PERSON = Person(TerminalAsker())
"""Of this process, which has one terminal."""
