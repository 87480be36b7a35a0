"""A run on its nodes, followed, with the operator's wishes carried out meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from distconsole.model.decoding import threadsafe
from distconsole.model.names import HostName
from distconsole.model.outcome import Outcome
from distconsole.model.requests import Run
from distconsole.model.run_events import LogLine, RunEvents
from distconsole.operations.control import Control, ControlCommand, StopReason, Wish
from distconsole.rpc.stream import ItemStream
from distconsole.runs.following.feed import JournalStream, OpenStream
from distconsole.runs.following.follow import follow
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import keep_whole, stored_timeline
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session, request_every

STORE_BYTES = 4 << 30
STOP_SECONDS = 15.0

MANY_HOSTS, PINGS, FEW_PINGS = 32, 8, 3
"""With more hosts than that, each one's clock is compared with fewer exchanges."""

WIRE_REASONS = {
    StopReason.INTERRUPT: "sigint",
    StopReason.TERMINATE: "sigterm",
    StopReason.STOP: "user",
}
"""Reasons by the nodes' names."""


class WishCarrier:
    """Carries out the wishes of a ``Control`` on threads of its own.

    Its own, so that a stop reaches the nodes while the consumer of the events is blocked on a full pipe;
    and one for each wish, so that a kill does not wait for a host that hangs in the stop.
    """

    def __init__(
        self, control: Control, session: Session, hosts: Sequence[HostName], run: str
    ) -> None:
        self._control = control
        self._session = session
        self._hosts = list(hosts)
        self._run = run
        self.left = threading.Event()
        self._thread = threading.Thread(target=self._carry, name=f"wishes-{run}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._control.close()
        self._thread.join()

    def _carry(self) -> None:
        obeying: list[threading.Thread] = []
        while (command := self._control.next()) is not None:
            if command.wish is Wish.LEAVE:
                self.left.set()
                continue
            thread = threading.Thread(
                target=self._obey, args=(command,), name=f"{command.wish}-{self._run}", daemon=True
            )
            thread.start()
            obeying.append(thread)
        for thread in obeying:
            thread.join()

    def _obey(self, command: ControlCommand) -> None:
        # A kill is a stop without grace, so that it keeps its reason and so its exit code.
        grace_seconds = 0.0 if command.wish is Wish.KILL else command.grace_seconds
        reason = WIRE_REASONS[command.reason]
        stop_ranks(self._session, self._hosts, self._run, reason, grace_seconds)


def stop_ranks(
    session: Session, hosts: Sequence[HostName], run: str, reason: str, grace_seconds: float | None
) -> list[Outcome[dict[str, Any]]]:
    """Ask every node to end the run: SIGTERM, and SIGKILL after ``grace_seconds``.

    One node suffices, because its coordinator informs the others; asking all works with any node
    unreachable. ``reason`` is ``user``, ``sigint`` or ``sigterm`` and decides the exit code;
    ``grace_seconds`` None takes the run's own, and 0 kills.
    """
    arguments: dict[str, Any] = {"run": run, "reason": reason}
    if grace_seconds is not None:
        arguments["grace"] = grace_seconds
    return request_every(session, hosts, "stop", STOP_SECONDS, **arguments)


def watch_run(
    record: RunRecord,
    session: Session,
    control: Control,
    store: RunStore,
    until: Mapping[HostName, JournalPlace] | None = None,
    over: Callable[[], bool] | None = None,
    *,
    whole: bool = False,
) -> Iterator[RunEvents]:
    """Yield a run's events to its end, or until the operator leaves.

    Args:
        over: Asked while no host answers: whether the run has ended, by another source.
        whole: Every line is wanted, however late (``follow``).
    """
    hosts = [HostName(host) for host in record.hosts]
    carrier = WishCarrier(control, session, hosts, record.run)
    opener = journal_opener(session, record.run)
    demo = session.cluster.demo_folder
    timeline = RunTimeline()

    def is_over() -> bool:
        return (over is not None and over()) or (demo is not None and not demo.exists())

    def note(behind: bool, unordered: bool) -> None:
        control.behind, control.unordered = behind, unordered

    try:
        limit = store_limit(record)
        for event in follow(
            *(store, record, opener, carrier.left.is_set, until, is_over, limit, note),
            control.retell,
            whole=whole,
        ):
            if control.timeline is None and not isinstance(event, LogLine):
                timeline.apply(event)
            yield event
        timeline = control.timeline or timeline
        if timeline.end is not None:
            with store.open(record.run) as run_file:
                keep_whole(run_file, stored_timeline(run_file) if control.unordered else timeline)
    finally:
        carrier.close()


def store_limit(record: RunRecord) -> int:
    """Return how many bytes a run may take on this machine: as was asked when it was launched."""
    request = decode_request(record)
    return (request.store_limit if request is not None else None) or STORE_BYTES


def decode_request(record: RunRecord) -> Run | None:
    """Return the request of a run that was launched from here; None of a version with other options."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(record.request or b"null", type=threadsafe(Run | None))
    return None


def journal_opener(session: Session, run: str) -> OpenStream:
    """Return how to open a host's journal of ``run``, connecting again if need be."""

    pings = PINGS if len(session.cluster.hosts) <= MANY_HOSTS else FEW_PINGS

    def open_journal(host: HostName, after: int, journal: str) -> JournalStream:
        link = session.link(host)
        # The link has the node's clock offset; its negative corrects the node's times.
        offset_seconds = -link.clock_offset(pings).seconds
        stream = link.stream("follow", run=run, after=after, journal=journal)
        return _LinkJournal(stream, offset_seconds)

    return open_journal


class _LinkJournal:
    """A ``follow`` stream with the clock offset of its node."""

    def __init__(self, stream: ItemStream, clock_offset: float) -> None:
        self.clock_offset = clock_offset
        self.listen, self.take, self.close = stream.listen, stream.take, stream.close
