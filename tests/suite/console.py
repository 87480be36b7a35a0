"""``distconsole`` as an operator starts it: a process of its own, its JSON events read as they come, or in the test's.

It asserts only that they come.
"""

import io
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import IO, Any, ClassVar, Self

from distconsole.__main__ import run
from suite.forked_console import ForkedConsole
from testbed import Testbed

ENDED = ("exited", "failed", "killed")


def perform(bed: Testbed, *words: str, hosts: str | None = None) -> tuple[int, str, str]:
    """Do what a shell's words ask for in this process; return the exit code, what it printed, and what to stderr."""
    named = bed.names if hosts is None else hosts
    where = ("--ssh-config", str(bed.ssh_config), *(("--hosts", named) if named else ()))
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = run([*words[:1], *where, *words[1:]])
    return code, out.getvalue(), err.getvalue()


class Console:
    """A program of its own, as an operator starts it; killed at the end if it still runs.

    Args:
        folder: Where its runs are kept; consoles with the same one know each other's.
        words: The verb and what follows; where the hosts are is put in between.
        hosts: As ``--hosts`` takes them; all of the bed's if not given.

    Attributes:
        events: What it printed so far.
        stderr: Its narration so far.
        server: Where consoles are forked off, or each is a fresh interpreter.
    """

    server: ClassVar[Path | None] = None

    def __init__(self, bed: Testbed, folder: Path, *words: str, hosts: str | None = None) -> None:
        where = ["--ssh-config", str(bed.ssh_config), "--hosts", hosts or bed.names]
        self.events: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self._changed = threading.Condition()
        environment = {**os.environ, "XDG_DATA_HOME": str(folder / "data")}
        argv = [words[0], *where, *words[1:]]
        self.process: subprocess.Popen[str] | ForkedConsole
        if self.server is not None:
            self.process = ForkedConsole(self.server, argv, environment)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distconsole", *argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
                start_new_session=True,
            )
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._event)),
            threading.Thread(target=self._read, args=(self.process.stderr, self.stderr.append)),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    @property
    def run(self) -> str:
        """The run's id, once it is planned."""
        return str(self.events[0]["run"])

    def see(self, seconds: float = 60.0, **fields: Any) -> dict[str, Any]:
        """Wait for an event with these fields."""
        deadline = time.monotonic() + seconds
        looked = 0
        with self._changed:
            while True:
                for event in self.events[looked:]:
                    if all(event.get(name) == value for name, value in fields.items()):
                        return event
                looked = len(self.events)
                left = deadline - time.monotonic()
                assert left > 0, (fields, self.events[-5:], self.stderr[-20:])
                self._changed.wait(left)

    def wait(self, seconds: float = 90.0) -> int:
        """Wait for the process's end; return its exit code."""
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(10)
        return code

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the events of a kind."""
        return [event for event in list(self.events) if event["event"] == kind]

    def lines(self, rank: int) -> list[str]:
        """Return what a rank printed: its whole lines."""
        whole = [event for event in self.of("log") if not event.get("transient")]
        return [event["line"] for event in whole if event.get("rank") == rank]

    def ends(self) -> dict[int, dict[str, Any]]:
        """Return how each rank ended, where it did."""
        return {event["rank"]: event for event in self.of("rank") if event["state"] in ENDED}

    def _event(self, line: str) -> None:
        with self._changed:
            self.events.append(json.loads(line))
            self._changed.notify_all()

    @staticmethod
    def _read(stream: IO[str] | None, take: Any) -> None:
        assert stream is not None
        for line in stream:
            take(line)
