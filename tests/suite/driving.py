"""The operator of a test: performs a request on a thread and waits for what it must see. It asserts nothing."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from distconsole.model.events import Event, Narration
from distconsole.model.requests import Request
from distconsole.model.run_events import LogLine, RunEnded, RunEvent
from distconsole.operations import Control, SessionSource, perform

E = TypeVar("E")


def write_script(folder: Path, text: str, name: str = "train.py") -> str:
    """Write a script and return its path."""
    path = folder / name
    path.write_text(text)
    return str(path)


def write_job(folder: Path, text: str) -> str:
    """Write a script that knows its ``rank`` and has imported what most need; return its path."""
    head = "import os, sys, time, signal\nrank = int(os.environ['RANK'])\n"
    return write_script(folder, f"{head}{text}\n", "job.py")


class Operator:
    """One request under way.

    Attributes:
        events: What came so far.
        control: Its handle.
        error: What it raised, if it did.
    """

    def __init__(self, request: Request, sessions: SessionSource) -> None:
        self.events: list[Event] = []
        self.control = Control()
        self.error: BaseException | None = None
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._perform, args=(request, sessions))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread.is_alive():
            self.control.kill()
            self._thread.join(20)
        if self._thread.is_alive():
            self.control.leave()
            self._thread.join()

    @property
    def run(self) -> str:
        """The run's id, once it is planned."""
        return next(event.run for event in self.events if isinstance(event, RunEvent))

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def lines(self) -> list[str]:
        """Return the lines that were printed."""
        return [line.line for line in self.of(LogLine) if not line.transient]

    def slurm_job(self) -> str:
        """Wait until the run is submitted; return the id of its Slurm job."""
        told = self.see(Narration, lambda event: "submitted Slurm job" in event.text).text
        return told.split()[3]

    def see(
        self,
        kind: type[E],
        wanted: Callable[[E], Any] = lambda _event: True,
        seconds: float = 60.0,
    ) -> E:
        """Wait for an event of a kind that fits.

        Raises:
            AssertionError: if it does not come, or the request ends before.
        """
        deadline = time.monotonic() + seconds
        looked = 0
        with self._changed:
            while True:
                for event in self.events[looked:]:
                    if isinstance(event, kind) and wanted(event):
                        return event
                looked = len(self.events)
                left = deadline - time.monotonic()
                if self._over or left <= 0:
                    raise AssertionError(
                        f"no such {kind.__name__} ({'over' if self._over else 'late'}): "
                        f"{self.error!r}, last events {self.events[-5:]}"
                    )
                self._changed.wait(left)

    def end(self, seconds: float = 90.0) -> RunEnded:
        """Wait for the run's end."""
        return self.see(RunEnded, lambda _end: True, seconds)

    def ended(self) -> RunEnded:
        """Wait for the run's end, and until the request is answered."""
        end = self.end()
        self.finish()
        return end

    def finish(self, seconds: float = 60.0) -> list[Event]:
        """Wait until the request is answered; raise what it raised."""
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the request is not answered"
        if self.error is not None:
            raise self.error
        return self.events

    def _perform(self, request: Request, sessions: SessionSource) -> None:
        try:
            for event in perform(request, sessions, self.control):
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001  (handed to the test)
            self.error = error
        with self._changed:
            self._over = True
            self._changed.notify_all()


def answered(request: Request, sessions: SessionSource, seconds: float = 60.0) -> Operator:
    """Return a request that was answered; raise what it raised."""
    with Operator(request, sessions) as operator:
        operator.finish(seconds)
    return operator
