"""Requests of a front end to a running operation: to stop, to kill, to leave."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from queue import SimpleQueue

from distconsole.model.events import Event
from distconsole.model.run_events import EndState, RunEnded, RunEvents
from distconsole.runs.timeline import RunTimeline


class StopReason(StrEnum):
    """Why a run is stopped; decides its exit code."""

    INTERRUPT = "interrupt"
    """Ctrl-C: 130."""
    TERMINATE = "terminate"
    """SIGTERM to the console: 143."""
    STOP = "stop"
    """The verb ``stop``: 143."""

    @property
    def exit_code(self) -> int:
        return 130 if self is StopReason.INTERRUPT else 143


class Wish(StrEnum):
    """Kind of such a request."""

    STOP = "stop"
    KILL = "kill"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True)
class ControlCommand:
    """One request with its arguments."""

    wish: Wish
    reason: StopReason = StopReason.INTERRUPT
    grace_seconds: float | None = None


def end_before_start(run: str, asked: ControlCommand) -> RunEnded:
    """Return the end of a run that was stopped, or left, before any rank was started."""
    return RunEnded(
        t=time.time(),
        run=run,
        state=EndState.STOPPED,
        exit_code=asked.reason.exit_code if asked.wish is not Wish.LEAVE else 0,
        seconds=0.0,
    )


def interrupt(events: Iterator[Event], by: KeyboardInterrupt | None = None) -> Iterator[Event]:
    """End an operation that reports its findings so far, and yield them. ``by`` ends it, by default Ctrl-C.

    Raises KeyboardInterrupt from an operation that reports none, or that is over.
    """
    by = by or KeyboardInterrupt()
    if not isinstance(events, Generator):
        raise by
    yield events.throw(by)
    yield from events


class Control:
    """The handle on one operation, made by the front end and given to ``perform``.

    Every method may be called from any thread and from a signal handler, any number of times, before,
    while and after the operation goes on; none blocks. ``SimpleQueue.put`` is reentrant, which
    ``Event.set`` and ``Condition.notify`` are not: that is why there is a queue here.

    Attributes:
        asked: The last wish, or None.
        confirm: Asks the person a question, for yes or no; None if no person is there.
        ask: Asks for a line of text, in a shell alone; None elsewhere.
        began: When the person began to wait, in monotonic seconds; as a rule when this was made.
        timeline: The fold of the run's events, if the front end keeps one: it has each before it asks for the next.
        behind: Whether more of the run has come already than the operation has yielded.
        unordered: Whether its events were not in the order of time, so that sums over the hosts are wrong.
        retell: Takes all events of the run once more then, in the order of time.
    """

    def __init__(self, began: float | None = None) -> None:
        self.confirm: Callable[[str], bool] | None = None
        self.ask: Callable[[str], str] | None = None
        self.began = time.monotonic() if began is None else began
        self.timeline: RunTimeline | None = None
        self.behind = self.unordered = False
        self.retell: Callable[[Iterator[RunEvents]], None] | None = None
        self._commands: SimpleQueue[ControlCommand | None] = SimpleQueue()
        self.asked: ControlCommand | None = None

    def stop(
        self, reason: StopReason = StopReason.INTERRUPT, grace_seconds: float | None = None
    ) -> None:
        """Stop the run on every host and go on following it to its end; None takes the run's own grace."""
        self._put(ControlCommand(Wish.STOP, reason, grace_seconds))

    def kill(self, reason: StopReason = StopReason.INTERRUPT) -> None:
        """Kill the run on every host at once and go on following it to its end."""
        self._put(ControlCommand(Wish.KILL, reason))

    def leave(self) -> None:
        """End the operation and leave the run going."""
        self._put(ControlCommand(Wish.LEAVE))

    def next(self) -> ControlCommand | None:
        """Wait for the next wish (for operations); None once ``close`` was called."""
        return self._commands.get()

    def close(self) -> None:
        """Release whoever waits in ``next`` (for operations, when they end)."""
        self._commands.put(None)

    def _put(self, command: ControlCommand) -> None:
        self.asked = command
        self._commands.put(command)
