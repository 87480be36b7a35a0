"""The same work on many nodes at once, each accounted for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from distconsole.errors import ConnectError, NodeError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed, Ok, Outcome
from distconsole.ssh.transport import Clock

T = TypeVar("T")
R = TypeVar("R")

CONNECTORS = 32
"""Nodes that are begun at the same time: sshd on a jump host refuses bursts (MaxStartups)."""

YOUNG_SECONDS = 1.0
"""Work that takes longer waits for its node rather than for us, and makes room for the next."""

MOST_THREADS = 512


def fan_out(
    hosts: Sequence[Host], work: Callable[[Host], T], *, seconds: float | None = None
) -> list[Outcome[T]]:
    """Return what became of each host, in their order; see ``iter_outcomes``."""
    outcomes = iter_outcomes(hosts, work, seconds=seconds)
    done = {outcome.host: outcome for outcome in outcomes}
    return [done[host.name] for host in hosts]


def iter_outcomes(
    hosts: Sequence[Host],
    work: Callable[[Host], T],
    *,
    seconds: float | None = None,
    clock: Clock = time.monotonic,
) -> Iterator[Outcome[T]]:
    """Do ``work`` on every host and yield outcomes as they come.

    Args:
        hosts: With names that differ.
        work: Raises ``NodeError`` where the node cannot; anything else it raises is raised here.
        seconds: Each node's deadline, from when its work began; None for none.
    """
    fan = _Fan(work, seconds, clock)
    starter = threading.Thread(target=fan.begin_all, args=(hosts,), name="fan-out", daemon=True)
    starter.start()
    try:
        for _ in hosts:
            outcome = fan.next()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        fan.leave()


class _Fan(Generic[R]):
    """Threads that work and the one that collects."""

    def __init__(self, work: Callable[[Host], R], seconds: float | None, clock: Clock) -> None:
        self._work = work
        self._seconds = seconds
        self._clock = clock
        self._changed = threading.Condition()
        self._running: dict[HostName, float] = {}
        self._late = 0
        self._outcomes: list[Outcome[R] | BaseException] = []
        self._left = False

    def begin_all(self, hosts: Sequence[Host]) -> None:
        """Start a thread for each host, as there is room."""
        for host in hosts:
            with self._changed:
                while not self._left and not self._room():
                    self._changed.wait(YOUNG_SECONDS / 4)
                if self._left:
                    return
                self._running[host.name] = self._clock()
                self._changed.notify_all()
            threading.Thread(
                target=self._do, args=(host,), name=f"work:{host.name}", daemon=True
            ).start()

    def next(self) -> Outcome[R] | BaseException:
        """Wait for an outcome, or for a deadline that passes."""
        with self._changed:
            while not self._outcomes:
                wait = None
                if self._seconds is not None and self._running:
                    name, began = min(self._running.items(), key=lambda one: one[1])
                    wait = began + self._seconds - self._clock()
                    if wait <= 0:
                        return self._overdue(name)
                self._changed.wait(wait)
            return self._outcomes.pop(0)

    def leave(self) -> None:
        """Nobody collects any more."""
        with self._changed:
            self._left = True
            self._changed.notify_all()

    def _room(self) -> bool:
        now = self._clock()
        young = sum(1 for began in self._running.values() if now - began < YOUNG_SECONDS)
        return young < CONNECTORS and len(self._running) + self._late < MOST_THREADS

    def _do(self, host: Host) -> None:
        outcome: Outcome[R] | BaseException
        try:
            outcome = Ok(host.name, self._work(host))
        except NodeError as error:
            outcome = Failed(host.name, error)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, who raises it
            outcome = error
        with self._changed:
            if self._running.pop(host.name, None) is not None:
                self._outcomes.append(outcome)
            else:
                self._late -= 1
            self._changed.notify_all()

    def _overdue(self, name: HostName) -> Failed:
        del self._running[name]
        self._late += 1
        error = ConnectError(
            f"{name} did not do it within {self._seconds:g} s", "is it overloaded?"
        )
        return Failed(name, error)
