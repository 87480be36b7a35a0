"""``top``: the load of the hosts, live."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, Full, Queue, SimpleQueue
from typing import TypeAlias

from distconsole.errors import NodeError, UnreachableError
from distconsole.model.events import Event, HostStatus
from distconsole.model.names import HostName
from distconsole.model.outcome import failed, succeeded
from distconsole.model.requests import Top
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.operations.control import Control
from distconsole.operations.judging import Judge, my_names
from distconsole.operations.sessions import SessionSource
from distconsole.rpc.frames import Survey
from distconsole.rpc.link import NodeLink
from distconsole.rpc.stream import ItemStream
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow, load_rows
from distconsole.runs.samples import load_events
from distconsole.session import Session, on_every

News: TypeAlias = list[NodeSample | GpuSample] | HostStatus | Survey
"""The load of a host, or its state, or which jobs are there."""

Ended: TypeAlias = "SimpleQueue[NodeError | None]"
"""Takes why a host's stream has ended."""

QUEUED_SAMPLES_A_HOST = 4
"""When the consumer is slow, samples are dropped: an old load is of no interest."""

RETRY_SECONDS = 3.0
POLL_SECONDS = 0.25
"""How soon a wish to leave is noticed."""
FIRST_SAMPLE_SECONDS = 10.0
"""How long ``once`` waits for a host that was reached."""


def top(request: Top, sessions: SessionSource, control: Control) -> Iterator[Event]:
    """Yield samples of every host until left; with ``once`` one of each.

    A host that is lost is an event, and is tried again. Raises UnreachableError if no host can be reached;
    UsageError if a condition means nothing; UnavailableError if nothing is known of what ``fail_if`` asks.
    """
    judge = Judge(LOAD_FIELDS, request.only, request.fail_if, always_some=True)
    with sessions(request.where) as session:
        hosts = [host.name for host in session.cluster.hosts]
        outcomes = on_every(session, hosts, lambda _link: None)
        reached = [each.host for each in succeeded(outcomes)]
        failures = failed(outcomes)
        for failure in failures:
            yield _lost(failure.host, failure.error)
        if not reached:
            first = failures[0].error
            raise UnreachableError(f"no host can be reached: {first.message}", first.hint)
        watch = LoadWatch(session, reached if request.once else hosts, request.interval_seconds)
        try:
            if request.once and judge.asks:
                yield from _judge_samples(
                    judge, list(_once(watch, reached)), my_names(session.cluster)
                )
            elif request.once:
                yield from _once(watch, reached)
            else:
                while control.asked is None:
                    match watch.next():
                        case (_, list(samples)):
                            yield from samples
                        case (_, HostStatus() as status):
                            yield status
                        case _:
                            pass
        finally:
            watch.close()


class LoadWatch:
    """A reading thread for each host, and the queue that they feed."""

    def __init__(self, session: Session, hosts: list[HostName], interval_seconds: float) -> None:
        self._session = session
        self._interval_seconds = interval_seconds
        self._queue: Queue[tuple[HostName, News]] = Queue(QUEUED_SAMPLES_A_HOST * len(hosts))
        self._closed = threading.Event()
        self._streams: dict[HostName, ItemStream] = {}
        for host in hosts:
            name = f"load-{host}"
            threading.Thread(target=self._watch, args=(host,), name=name, daemon=True).start()

    def next(self) -> tuple[HostName, News] | None:
        """Return a host and its load or its state; None if nothing came for a moment."""
        try:
            return self._queue.get(timeout=POLL_SECONDS)
        except Empty:
            return None

    def close(self) -> None:
        self._closed.set()
        for stream in list(self._streams.values()):
            stream.close()

    def _watch(self, host: HostName) -> None:
        while not self._closed.is_set():
            try:
                self._read(host)
            except NodeError as error:
                self._offer(host, _lost(host, error))
            if self._closed.wait(RETRY_SECONDS):
                return

    def _read(self, host: HostName) -> None:
        link = self._session.link(host)
        self._offer(host, HostStatus(host=host, reachable=True))
        with link.stream("watch", interval=self._interval_seconds) as stream:
            # ``close`` ends it, so that none of a thousand threads has to poll.
            self._streams[host] = stream
            ended: Ended = SimpleQueue()
            stream.listen(partial(self._take, host, stream, ended))
            self._stay(host, link, ended)

    def _take(self, host: HostName, stream: ItemStream, ended: Ended) -> None:
        """Take what came of a host; on the reader's thread, so that the host's own is not woken for it."""
        try:
            while (item := stream.take(0.0)) is not None:
                self._offer(
                    host,
                    list(load_events("", host, item.node, item.gpus, time.time(), item.processes)),
                )
        except StopIteration:  # one that the agent ends is asked for again
            ended.put(None)
        except NodeError as error:
            ended.put(error)

    def _stay(self, host: HostName, link: NodeLink, ended: Ended) -> None:
        """Stay with a host until its stream has ended, and do what else is wanted of it: here nothing."""
        raise_end(ended.get())

    def _put(self, host: HostName, news: News) -> None:
        """Wait until there is room for what must not be lost."""
        while not self._closed.is_set():
            with suppress(Full):
                self._queue.put((host, news), timeout=POLL_SECONDS)
                return

    def _offer(self, host: HostName, news: News) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                self._queue.put_nowait((host, news))
                return
            with suppress(Empty):
                self._queue.get_nowait()


def raise_end(error: NodeError | None) -> None:
    """Raise why a stream ended, unless the agent ended it."""
    if error is not None:
        raise error


def _once(watch: LoadWatch, hosts: list[HostName]) -> Iterator[Event]:
    """Yield one sample of each host, in their order; of one that has none in time, that it has none."""
    found: dict[HostName, Sequence[Event]] = {}
    deadline = time.monotonic() + FIRST_SAMPLE_SECONDS
    while len(found) < len(hosts) and time.monotonic() < deadline:
        match watch.next():
            case (host, list(samples)):
                found.setdefault(host, samples)
            case (host, HostStatus() as status) if not status.reachable:
                found.setdefault(host, [status])
    for host in hosts:
        if host in found:
            yield from found[host]
            continue
        yield HostStatus(
            host=host,
            reachable=False,
            detail=f"its agent answers, but told nothing of its load for {FIRST_SAMPLE_SECONDS:g} s",
            error_kind="timeout",
            hint="once more, or distconsole check --only os",
        )


def _judge_samples(
    judge: Judge[LoadRow], samples: list[Event], me: tuple[str, ...]
) -> Iterator[Event]:
    nodes = {each.host: each for each in samples if isinstance(each, NodeSample)}
    gpus = [each for each in samples if isinstance(each, GpuSample)]
    rows, verdict = judge.judge(load_rows(nodes, nodes, gpus, me))
    hosts = {row.host for row in rows}
    wanted = {id(row.gpu) for row in rows if row.gpu is not None}
    for sample in samples:
        of_host = isinstance(sample, NodeSample) and sample.host not in hosts
        if not of_host and not (isinstance(sample, GpuSample) and id(sample) not in wanted):
            yield sample
    yield from verdict


def _lost(host: HostName, error: NodeError) -> HostStatus:
    return HostStatus(
        host=host, reachable=False, detail=error.message, error_kind=error.kind, hint=error.hint
    )
