"""Ends the program for a person who has asked twice, whatever it waits for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

from distconsole.model.events import Event
from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import PlanMade, RankChanged, RunEnded
from distconsole.runs.rank_view import LIVING

SAY_SECONDS, END_SECONDS = 3.8, 0.6
"""Seconds until the program reports its leftovers; until it is gone."""

LOOK_SECONDS = 1.0
"""Between interruptions of the main thread: its wait for a lock goes on if a signal came right before (``acquire_timed``)."""

WRITE_SECONDS = 0.2
STDERR = 2
MAX_HOSTS_NAMED, MAX_RANKS_NAMED = 32, 8


class LeftBehind:
    """What may go on when the program leaves, by the events it has seen."""

    def __init__(self) -> None:
        self._run = ""
        self._hosts: tuple[str, ...] = ()
        self._living: dict[int, tuple[str, int | None]] = {}

    def see(self, event: Event) -> None:
        if isinstance(event, PlanMade):
            self._run = event.run
            self._hosts = tuple(host.host for host in event.hosts)
            self._living.clear()
        elif isinstance(event, RankChanged) and event.state in LIVING:
            self._run = event.run
            self._living[event.rank] = (event.host, event.pid)
        elif isinstance(event, RankChanged):
            self._living.pop(event.rank, None)
        elif isinstance(event, RunEnded):
            self._run = ""

    def words(self) -> list[str]:
        """Return what to say of it, in lines; nothing where nothing is left."""
        if not self._run:
            return []
        by_host: dict[str, list[str]] = {host: [] for host in self._hosts}
        for rank, (host, pid) in sorted(self._living.copy().items()):
            by_host.setdefault(host, []).append(f"rank {rank}" + (f" (pid {pid})" if pid else ""))
        lines = [
            f"    {host}: {join_some(ranks, MAX_RANKS_NAMED) or 'nothing is known of its ranks'}"
            for host, ranks in list(by_host.items())[:MAX_HOSTS_NAMED]
        ]
        if len(by_host) > MAX_HOSTS_NAMED:
            lines.append(f"    and {count_text(len(by_host) - MAX_HOSTS_NAMED, 'more host')}")
        return [
            f"leaving: not every host has said that {self._run} is over; this may be left:",
            *lines,
            f"to look: distconsole attach {self._run}; to end it: distconsole stop {self._run}",
        ]


class LastResort:
    """A thread that ends the process some seconds after ``begin``; its methods may be called by signal handlers.

    Args:
        words: What to say first, in lines.
        leave: Asks the program to end in its own way, after the report.
        restore: Gives the terminal back before the end.
    """

    def __init__(
        self,
        words: Callable[[], list[str]],
        leave: Callable[[], None] = lambda: None,
        restore: Callable[[], None] = lambda: None,
    ) -> None:
        self._words, self._leave, self._restore = words, leave, restore
        self._asked: SimpleQueue[int | None] = SimpleQueue()
        self._begun = False
        threading.Thread(target=self._wait, name="last-resort", daemon=True).start()

    def begin(self, exit_code: int) -> None:
        """End the process soon with ``exit_code``; called again, at once."""
        self._begun = True
        self._asked.put(exit_code)

    def close(self) -> None:
        """Cancel, unless it has begun: closing the rest may hang, too."""
        if not self._begun:
            self._asked.put(None)

    def _wait(self) -> None:
        while True:
            with contextlib.suppress(Empty):
                exit_code = self._asked.get(timeout=LOOK_SECONDS)
                break
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)
        if exit_code is None:
            return
        with contextlib.suppress(Empty):
            self._asked.get(timeout=SAY_SECONDS)
        # Whatever fails or hangs here, the end comes.
        with contextlib.suppress(RuntimeError):
            saying = threading.Thread(target=self._say, daemon=True)
            saying.start()
            saying.join(2 * WRITE_SECONDS)
        with contextlib.suppress(Empty):
            self._asked.get(timeout=END_SECONDS)
        os._exit(exit_code)

    def _say(self) -> None:
        with contextlib.suppress(Exception):
            self._restore()
            write_stderr(self._words())
            self._leave()


def write_stderr(lines: list[str]) -> None:
    """Write lines past everything that buffers, if the terminal takes them."""
    if lines and select.select([], [STDERR], [], WRITE_SECONDS)[1]:
        text = "\r\x1b[K" * os.isatty(STDERR) + "".join(f"{line}\n" for line in lines)
        os.write(STDERR, text.encode(errors="backslashreplace")[: select.PIPE_BUF])
