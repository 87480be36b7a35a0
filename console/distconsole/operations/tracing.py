"""``trace``: torch's profiler on the ranks of a run that goes on, merged into one file."""

from __future__ import annotations

import base64
import binascii
import gzip
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distconsole.config.paths import expand_home
from distconsole.errors import AgentError, ConnectError, UnavailableError, UsageError
from distconsole.formats.merged_trace import RankTrace, TraceError, merge
from distconsole.formats.outlets import NewFile, writable
from distconsole.model.events import Event, Narration, TextMade, warn
from distconsole.model.names import HostName, count_text
from distconsole.model.outcome import Failed
from distconsole.model.requests import Trace
from distconsole.operations.attach import find_record, open_run
from distconsole.operations.sessions import SessionSource
from distconsole.rpc.frames import TraceItem, TracePiece
from distconsole.rpc.link import NodeLink
from distconsole.rpc.wire import decode_as
from distconsole.runs.store.planned import stored_end
from distconsole.runs.store.store import RunStore
from distconsole.session import Session, each_outcome

AHEAD_SECONDS = 0.5
"""From now to the moment at which all ranks begin: every host has been asked by then."""

GRACE_SECONDS = 30.0
"""Latest answer of an agent, in seconds after its last rank's deadline."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The trace of one rank; ``trace`` is None if it could not be traced."""

    host: HostName
    item: TraceItem
    trace: RankTrace | None


def trace(request: Trace, sessions: SessionSource, store: RunStore) -> Iterator[Event]:
    """Have every rank traced, and write one file of all.

    Raises RunNotFoundError for an unknown run; UsageError if it is over; UnavailableError if no
    rank could be traced; ConfigError if the file cannot be written.
    """
    record = find_record(request.run, request.where, sessions, store)
    end = stored_end(record) if record is not None else None
    if record is not None and end is not None:
        raise UsageError(
            f"{record.run} is over ({end.state}): only ranks that make steps can be traced",
            f"distconsole rerun {record.run}, and trace it while it goes on",
        )
    opened = open_run(record, request.run, request.where, sessions, store)
    with (
        opened as (session, record, hosts),
        tempfile.TemporaryDirectory(prefix="distconsole-trace-") as folder,
    ):
        output = expand_home(request.output or f"{record.run}-trace.json.gz")
        yield Narration(
            text=f"tracing {record.run} for {request.seconds:g} s on {', '.join(hosts)}"
        )
        traces: list[RankTrace] = []
        for part in _ask_all(session, hosts, request, record.run, Path(folder)):
            if isinstance(part, Narration):
                yield part
            else:
                yield _told(part)
                traces += [part.trace] if part.trace is not None else []
        if not traces:
            raise UnavailableError(
                f"no rank of {record.run} could be traced",
                "a rank is traced where it makes steps with torch; distconsole why says where each one is",
            )
        yield from _write(sorted(traces), output)


def _ask_all(
    session: Session, hosts: Sequence[HostName], request: Trace, run: str, folder: Path
) -> Iterator[_Part | Narration]:
    """Ask all hosts at once; yield what became of each rank, and hosts that cannot tell."""
    start_at = time.time() + AHEAD_SECONDS

    def ask(link: NodeLink) -> list[_Part]:
        return list(_ask(link, request, run, start_at, folder))

    for outcome in each_outcome(session, hosts, ask):
        if isinstance(outcome, Failed):
            hint = f": {outcome.error.hint}" if outcome.error.hint else ""
            yield warn(f"{outcome.text}{hint}")
        else:
            yield from outcome.value


def _ask(
    link: NodeLink, request: Trace, run: str, start_at: float, folder: Path
) -> Iterator[_Part]:
    """Yield what becomes of each rank of a host, its trace taken; raises NodeError."""
    host = link.host.name
    offset = link.clock_offset()
    most = request.max_mib << 20
    deadline = start_at + request.seconds + request.wait_seconds + GRACE_SECONDS
    arguments: dict[str, Any] = {
        "run": run,
        "seconds": request.seconds,
        "wait": request.wait_seconds,
        "max_bytes": most,
        "ranks": [rank for first, last in request.ranks for rank in range(first, last + 1)]
        or None,
        "start_ns": int((start_at + offset.seconds) * 1e9),
    }
    with link.stream("trace", **arguments) as stream:
        while True:
            try:
                taken = stream.take(max(0.0, deadline - time.time()))
            except StopIteration:
                return
            if taken is None:
                raise ConnectError(f"{host}: its agent does not say what became of its ranks")
            item: TraceItem = taken
            if item.tracing is not None:
                continue
            trace = None
            if not item.told.error:
                path = folder / f"{item.rank}.json.gz"
                _take(link, run, item, path)
                ahead, sure = int(offset.seconds * 1e9), int(offset.rtt_seconds * 1e9 / 2)
                trace = RankTrace(item.rank, host, path, item.bytes, ahead, sure)
            yield _Part(host, item, trace)


def _take(link: NodeLink, run: str, item: TraceItem, path: Path) -> None:
    """Bring a packed trace here, piece by piece. Raises NodeError."""
    offset = 0
    with path.open("xb") as file:
        while offset < item.packed:
            taken = link.request("trace_take", run=run, name=item.name, offset=offset)
            try:
                data = base64.b64decode(decode_as(taken, TracePiece).data, validate=True)
            except binascii.Error:
                raise AgentError(f"{link.name}: a piece of a trace is not base64") from None
            if not data:
                raise AgentError(f"{link.name}: the trace of rank {item.rank} ends too early")
            offset += file.write(data)


def _told(part: _Part) -> Narration:
    told, rank = part.item.told, f"rank {part.item.rank} on {part.host}"
    if told.error:
        return warn(f"{rank}: {told.error}")
    steps = count_text(told.last_step - told.first_step + 1, "step")
    seconds = (told.ended_ns - told.began_ns) / 1e9
    paused = (told.written_ns - told.ended_ns) / 1e9
    return Narration(
        text=f"{rank}: {steps} in {seconds:.2f} s, {part.item.bytes / 2**20:,.1f} MiB; "
        f"it paused for {paused:.1f} s to write them"
    )


def _write(traces: Sequence[RankTrace], output: Path) -> Iterator[Event]:
    new = NewFile(output)
    try:
        with writable(output):
            if output.suffix == ".gz":
                with gzip.GzipFile(fileobj=new.file, mode="wb", compresslevel=3) as packed:
                    merged = merge(traces, packed)
            else:
                merged = merge(traces, new.file)
        new.put()
    except TraceError as error:
        raise UnavailableError(str(error)) from None
    finally:
        new.abandon()
    text = f"{count_text(merged.events, 'event')} of {count_text(len(traces), 'rank')}, "
    text += (
        f"{count_text(merged.collectives, 'collective')} with arrows from the rank that came last"
    )
    corrected = max(map(abs, merged.corrected_ns.values()), default=0)
    if corrected:
        text += f"; clocks corrected by {corrected / 1e6:.2f} ms at most"
    yield Narration(text=f"{text}. Open it at https://ui.perfetto.dev (it stays on this machine)")
    yield TextMade(text=f"{output}")
