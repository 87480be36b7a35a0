"""The same work on many nodes, or different work, at once; each accounted for."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from distconsole.errors import ConnectError, NodeError, thread_error
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed, Ok, Outcome
from distconsole.ssh.asking import PERSON

T = TypeVar("T")

CONNECTORS = 32
"""Nodes that are logged in to at the same time: sshd on a jump host refuses bursts (MaxStartups)."""

YOUNG_SECONDS = 1.0
"""Work that takes longer waits for its node rather than for us, and makes room for the next."""

MOST_THREADS = 512


def fan_out(
    hosts: Sequence[Host],
    work: Callable[[Host], T],
    *,
    seconds: float | None = None,
) -> list[Outcome[T]]:
    """Return the outcome of each host, in their order; see ``iter_outcomes``."""
    done = {outcome.host: outcome for outcome in iter_outcomes(hosts, work, seconds=seconds)}
    return [done[host.name] for host in hosts]


def iter_outcomes(
    hosts: Sequence[Host],
    work: Callable[[Host], T],
    *,
    seconds: float | None = None,
    linked: Callable[[Host], bool] = lambda _: False,
) -> Iterator[Outcome[T]]:
    """Do ``work`` on every host and yield outcomes as they come.

    Args:
        hosts: With names that differ.
        work: Raises ``NodeError`` if the node cannot; any other exception is raised here.
        seconds: Each node's deadline, from the start of its work, without the time of a person's answer to a login; None for none.
        linked: Returns True for a host with a link, so that its work begins with no login and waits for no other's.
    """
    waiting = deque(hosts)
    running: dict[HostName, float] = {}
    logging_in: dict[HostName, float] = {}
    threads = 0  # with those past their deadline
    ended: queue.SimpleQueue[tuple[HostName, Outcome[T] | BaseException]] = queue.SimpleQueue()
    clock = PERSON.working_seconds
    while waiting or running:
        now = clock()
        young = sum(now - began < YOUNG_SECONDS for began in logging_in.values())
        while waiting and threads < MOST_THREADS and young < CONNECTORS:
            host = waiting.popleft()
            running[host.name] = now
            if not linked(host):
                logging_in[host.name] = now
                young += 1
            threads += 1
            name = f"work:{host.name}"
            thread = threading.Thread(target=_do, args=(host, work, ended), name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                ended.put((host.name, Failed(host.name, thread_error(host.name))))
        oldest, began = next(iter(running.items()), (None, now))
        due = math.inf if seconds is None or oldest is None else began + seconds
        patience = min(due - now, YOUNG_SECONDS / 4 if waiting else math.inf)
        try:
            ended_host, outcome = ended.get(
                timeout=None if patience == math.inf else max(0.0, patience)
            )
        except queue.Empty:
            if oldest is not None and clock() >= due:
                del running[oldest]
                text = f"{oldest} did not do it within {seconds:g} s"
                yield Failed(oldest, ConnectError(text, "is it overloaded?"))
            continue
        threads -= 1
        logging_in.pop(ended_host, None)
        if running.pop(ended_host, None) is not None:
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome


def _do(
    host: Host,
    work: Callable[[Host], T],
    ended: queue.SimpleQueue[tuple[HostName, Outcome[T] | BaseException]],
) -> None:
    outcome: Outcome[T] | BaseException
    try:
        outcome = Ok(host.name, work(host))
    except NodeError as error:
        outcome = Failed(host.name, error)
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        outcome = error
    ended.put((host.name, outcome))


GIVEN_UP_SECONDS = 15.0
"""Seconds for abandoned jobs to clean up."""


def run_at_once(
    works: Sequence[tuple[str, Iterator[str]]], give_up: Callable[[], None]
) -> Iterator[tuple[str, str]]:
    """Run each of ``works`` on a thread; yield its name and its results, as they come.

    The end of each yields its name and an empty text. Exceptions are raised here. If the
    consumer goes away before, ``give_up`` is called, and they may clear away what they began.
    """
    news: queue.SimpleQueue[tuple[str, str] | BaseException] = queue.SimpleQueue()

    def go_through(name: str, work: Iterator[str]) -> None:
        try:
            for done in work:
                news.put((name, done))
        except BaseException as error:  # noqa: BLE001 - raised to the consumer
            news.put(error)
        news.put((name, ""))

    threads = [
        threading.Thread(target=go_through, args=work, name=f"check {work[0]}", daemon=True)
        for work in works
    ]
    for thread in threads:
        thread.start()
    left = len(works)
    try:
        while left:
            told = news.get()
            if isinstance(told, BaseException):
                raise told
            left -= not told[1]
            yield told
    finally:
        if left:
            give_up()
            for thread in threads:
                thread.join(GIVEN_UP_SECONDS)
