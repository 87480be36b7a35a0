"""Work that the console can end by the token it gave, also before it has begun."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from distconsole_agent.probes.errors import failed

MAX_GIVEN_UP = 64


class Tokens:
    """The work of one kind that goes on, by token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, threading.Event] = {}
        # The question itself may come after its end.
        self._given_up: deque[str] = deque(maxlen=MAX_GIVEN_UP)

    @contextmanager
    def going(self, token: str) -> Iterator[threading.Event]:
        """Let work go on under ``token``; the event is set when nobody waits for it any more.

        Raises:
            ProbeError: if it was given up before it began.
        """
        stopped = threading.Event()
        with self._lock:
            if token in self._given_up:
                raise failed("it was given up before it began")
            self._running[token] = stopped
        try:
            yield stopped
        finally:
            with self._lock:
                self._running.pop(token, None)

    def give_up(self, token: str) -> threading.Event | None:
        """Return the event of what goes on under ``token``, to be set; what is yet to come will not begin."""
        with self._lock:
            self._given_up.append(token)
            return self._running.get(token)
