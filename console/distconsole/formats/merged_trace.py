"""Traces of torch's profiler, one a rank, as one trace in Chrome's format, which Perfetto opens too.

Format: "Trace Event Format" by the Chromium project; each rank becomes a process, its GPUs others.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import IO, NamedTuple

import msgspec

from distconsole.model.decoding import threadsafe

MAX_GPUS = 64
PROCESSES_A_RANK = MAX_GPUS + 1
STEP_MARK = "step "
"""The hook's marks are called so, and the step's number."""

GPU_LABEL = re.compile(rb'"GPU ([0-9]{1,3})"')

COLLECTIVE_CALLS = ("gloo:", "mpi:", "ucc:")
COLLECTIVE_KERNELS = ("ncclDevKernel", "ncclKernel", "rcclGenericKernel")


class TraceError(Exception):
    """A trace that is none, or too long; says which rank's."""


class RankTrace(NamedTuple):
    """A rank's trace: a gzip file of at most ``max_bytes`` unpacked; how far its clock is ahead of ours, and how sure that is."""

    rank: int
    host: str
    path: Path
    max_bytes: int
    ahead_ns: int
    sure_to_ns: int


class Merged(NamedTuple):
    """What became of it: events, collectives that were found on two ranks or more, and by how much hosts were corrected."""

    events: int
    collectives: int
    corrected_ns: Mapping[str, int]


class _Event(msgspec.Struct, omit_defaults=True):
    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = -1.0
    dur: float | None = None
    id: int | str | None = None
    bp: str | None = None
    s: str | None = None
    args: msgspec.Raw = msgspec.Raw()


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    base_ns: int = msgspec.field(name="baseTimeNanoseconds", default=0)


class _Collective(NamedTuple):
    """One collective of one rank, by its own clock."""

    began_ns: int
    ended_ns: int
    tid: int | str
    pid: int | str


Key = tuple[int, str, int]
"""Step, name, and the how manieth of that name in the step."""


def merge(traces: Sequence[RankTrace], file: IO[bytes] | gzip.GzipFile) -> Merged:
    """Write one trace of all (JSON) to ``file``, and return its summary.

    Clocks: a host's is set by the round trip (``ahead_ns``) and then, within what that leaves open
    (``sure_to_ns``), so that collectives end at one moment on all hosts, as those that hand every rank
    a result do. Raises TraceError; OSError when it cannot be written.
    """
    found: dict[int, dict[Key, _Collective]] = {}
    first_ns: dict[int, int] = {}
    for trace in traces:
        whole = _read(trace)
        found[trace.rank] = _collectives(trace, whole)
        starts = (one.ts for one in whole.events if one.ph == "X" and isinstance(one.pid, int))
        first_ns[trace.rank] = whole.base_ns + int(min(starts, default=0.0) * 1000)
    corrected = _correct(traces, found)
    ahead = {trace.rank: trace.ahead_ns + corrected[trace.host] for trace in traces}
    common = {
        key for key, n in Counter(key for each in found.values() for key in each).items() if n > 1
    }
    zero_ns = min((at - ahead[rank] for rank, at in first_ns.items()), default=0)
    count = 0
    file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
    encode = msgspec.json.Encoder().encode
    for trace in traces:
        whole = _read(trace)
        shift_us = (whole.base_ns - ahead[trace.rank] - zero_ns) / 1000
        for event in _placed(trace, whole, shift_us):
            file.write((b",\n" if count else b"") + encode(event))
            count += 1
    for event in _arrows(found, ahead, common, zero_ns):
        file.write((b",\n" if count else b"") + encode(event))
        count += 1
    file.write(b"\n]}\n")
    return Merged(count, len(common), corrected)


def _read(trace: RankTrace) -> _Trace:
    unpacker = zlib.decompressobj(31)
    try:
        data = unpacker.decompress(trace.path.read_bytes(), trace.max_bytes)
        if unpacker.unconsumed_tail:
            raise TraceError(f"the trace of rank {trace.rank} is longer than its host said")
        return msgspec.json.decode(data, type=threadsafe(_Trace))
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TraceError(f"the trace of rank {trace.rank} cannot be read: {error}") from None


def _collectives(trace: RankTrace, whole: _Trace) -> dict[Key, _Collective]:
    """Return the collectives of a trace; times in nanoseconds by the rank's own clock."""
    steps = sorted(
        (event.ts, event.ts + (event.dur or 0.0), int(event.name[len(STEP_MARK) :]))
        for event in whole.events
        if event.ph == "X"
        and event.name.startswith(STEP_MARK)
        and event.name[len(STEP_MARK) :].isdecimal()
    )
    found: dict[Key, _Collective] = {}
    counts: dict[tuple[int, str], int] = defaultdict(int)
    processes = _processes(trace, whole)
    events = sorted((one for one in whole.events if _is_collective(one)), key=lambda one: one.ts)
    place = 0
    for event in events:
        while place < len(steps) and steps[place][1] <= event.ts:
            place += 1
        if place == len(steps) or event.ts < steps[place][0]:
            continue
        step = steps[place][2]
        counts[step, event.name] += 1
        began_ns = whole.base_ns + round(event.ts * 1000)
        ended_ns = began_ns + round((event.dur or 0.0) * 1000)
        key = (step, event.name, counts[step, event.name])
        found[key] = _Collective(began_ns, ended_ns, event.tid, processes[event.pid])
    return found


def _is_collective(event: _Event) -> bool:
    is_call = event.ph == "X" and isinstance(event.pid, int)
    return is_call and event.name.startswith(COLLECTIVE_CALLS + COLLECTIVE_KERNELS)


def _correct(
    traces: Sequence[RankTrace], found: Mapping[int, Mapping[Key, _Collective]]
) -> dict[str, int]:
    first = traces[0].host if traces else ""
    ends: dict[Key, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for trace in traces:
        for key, one in found[trace.rank].items():
            ends[key][trace.host].append(one.ended_ns - trace.ahead_ns)
    later: dict[str, list[int]] = defaultdict(list)
    for by_host in ends.values():
        if first in by_host:
            for host, times in by_host.items():
                later[host].append(median_low(times) - median_low(by_host[first]))
    sure = {trace.host: trace.sure_to_ns for trace in traces}
    return {
        host: max(-sure[host], min(sure[host], round(median(later[host])))) if host in later else 0
        for host in sure
    }


def _processes(trace: RankTrace, whole: _Trace) -> dict[int | str, int]:
    """Return the process of the merged trace for each of the rank's own: itself and the GPUs on which it did anything.

    Kineto says which is which by a label of each, and writes of itself under names in place of numbers.
    """
    used = {one.pid for one in whole.events if one.ph != "M" and isinstance(one.pid, int)}
    gpus: dict[int | str, int] = {}
    for event in whole.events:
        if event.ph == "M" and event.name == "process_labels" and event.pid in used:
            found = GPU_LABEL.search(bytes(event.args))
            if found and int(found[1]) < MAX_GPUS:
                gpus[event.pid] = int(found[1]) + 1
    return {pid: trace.rank * PROCESSES_A_RANK + gpus.get(pid, 0) for pid in used}


def _placed(trace: RankTrace, whole: _Trace, shift_us: float) -> Iterator[_Event]:
    """Yield the events of a rank under its own processes, by the common clock."""
    processes = _processes(trace, whole)
    for process in sorted(set(processes.values())):
        gpu = process % PROCESSES_A_RANK
        name = f"rank {trace.rank} on {trace.host}" + (f", GPU {gpu - 1}" if gpu else "")
        for key, value in (("name", name), ("sort_index", process)):
            args = msgspec.Raw(msgspec.json.encode({key: value}))
            yield _Event(ph="M", name=f"process_{key}", pid=process, args=args)
    for event in whole.events:
        is_name = event.ph == "M"
        if event.pid not in processes or (is_name and event.name.startswith("process_")):
            continue
        event.pid = processes[event.pid]
        if is_name:
            event.ts = -1.0
        else:
            event.ts = round(event.ts + shift_us, 3)
        if event.id is not None:
            event.id = f"{trace.rank}.{event.id}"
        yield event


def _arrows(
    found: Mapping[int, Mapping[Key, _Collective]],
    ahead: Mapping[int, int],
    common: Iterable[Key],
    zero_ns: int,
) -> Iterator[_Event]:
    for number, key in enumerate(sorted(common)):
        here = {
            rank: each[key]._replace(began_ns=each[key].began_ns - ahead[rank] - zero_ns)
            for rank, each in found.items()
            if key in each
        }
        last = max(here, key=lambda rank: here[rank].began_ns)
        start = here.pop(last)
        at_us = round(start.began_ns / 1000, 3)
        for rank, one in here.items():
            arrow = _Event(
                name=f"waits for rank {last}",
                cat="collective",
                ts=at_us,
                id=f"collective.{number}.{rank}",
            )
            yield msgspec.structs.replace(arrow, ph="s", pid=start.pid, tid=start.tid)
            yield msgspec.structs.replace(arrow, ph="f", pid=one.pid, tid=one.tid, bp="e")
