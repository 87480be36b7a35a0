"""Reads the rings that ranks write; the only part of the agent that knows their layout.

A ring belongs to a process of the user's: all in it is bounded, and it is read with ``pread`` (a
mapping of a file that is cut short would end the agent by SIGBUS).
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from distconsole_agent.contract.limits import MAX_RING_CAPACITY, MAX_RINGS, READ_BYTES
from distconsole_agent.supervisor.proctree import host_pid
from distconsole_agent.system.descriptors import is_scarce
from distconsole_agent.system.kernel_files import entries_of
from distconsole_training import records

RING_SUFFIX, CHECKED_SUFFIX = records.RING_SUFFIX, records.CHECKED_SUFFIX
SERVER_SUFFIX, OFFSET_WANTED = records.SERVER_SUFFIX, records.OFFSET_WANTED
WANTED_SUFFIX, TOLD_SUFFIX = records.WANTED_SUFFIX, records.TOLD_SUFFIX

RUN_VARIABLES = (
    records.ENV_RUN,
    records.ENV_RINGS,
    records.ENV_ERRORS,
    records.ENV_HOOK,
    records.ENV_VERIFY,
    records.ENV_ATTEMPT,
)
"""The variables by which a run reaches its processes; the agent itself must not carry them."""

Record = tuple[Any, ...]
"""sequence, step, time_ns, kind, flags, name, samples, a, b, c, d, e, value; or four words for the last six."""

OVERDUE_SECONDS = 2.0
"""Longest wait for a record that later ones have overtaken."""

UNANNOUNCED_RECORDS = 8
"""So many records behind the last one announced are looked for when a process has ended."""

_RECORD_BYTES = records.RECORD.size
_OF_WORDS = (records.DETAIL, records.CHECK)
_MAGICS = (records.MAGIC, records.OLDER_MAGIC)
_LOWER = 0xFFFFFFFF
_NS = 1e-9


def training_folder() -> str:
    return os.path.dirname(os.path.abspath(records.__file__))


class Header(NamedTuple):
    """The header of a process's ring: the fields of ``records.HEADER``."""

    magic: bytes
    record_bytes: int
    capacity: int
    attempt: int
    pid: int
    rank: int
    local_rank: int
    world_size: int
    names_used: int
    written: int
    guard_errors: int
    started_time_ns: int
    started_monotonic_ns: int
    run_hash: int
    parent_pid: int
    flags: int
    title: bytes

    @property
    def finished(self) -> bool:
        """The process went through its exit handlers."""
        return bool(self.flags & records.HEADER_FINISHED)

    @property
    def is_child(self) -> bool:
        """Another Python process of the run started it, so that only itself knows its rank."""
        return bool(self.flags & records.HEADER_CHILD)


def step_of(data: bytes, offset: int) -> Record:
    """Return the record of the kind ``TIMES`` at ``offset`` of ``data`` as one of the kind ``STEP``."""
    sequence, step, ended, _, flags, name, samples, *moments, loss = records.MOMENTS.unpack_from(
        data, offset
    )
    began, asked, fetched, backward, backward_ended, optimizer = moments
    begins = began, asked, fetched, backward, optimizer
    ends = ended, fetched, backward, backward_ended, ended
    seconds = [((end - begin) & _LOWER) * _NS for begin, end in zip(begins, ends)]
    return (sequence, step, ended, records.STEP, flags, name, samples, *seconds, loss)


def read_headers(
    folder: str, enclosed: str | None = None, unread: list[OSError] | None = None
) -> Iterator[tuple[str, Header]]:
    """Yield path and header of each ring in ``folder`` that can be read; ``enclosed`` as for ``Ring``.

    ``unread`` gets the errors of the others, without those that are no ring yet.
    """
    names = [name for name in entries_of(folder) if name.endswith(RING_SUFFIX)]
    for name in names[:MAX_RINGS]:
        path = os.path.join(folder, name)
        try:
            ring = Ring(path, enclosed=enclosed)
        except (OSError, ValueError) as error:
            if unread is not None and isinstance(error, OSError):
                unread.append(error)
            continue
        ring.close()
        yield path, ring.header


def all_meet(folder: str, attempt: int) -> bool | None:
    """Return whether every rank with a ring of this attempt waits for its process group; None once one has it."""
    waiting = []
    for path, header in read_headers(folder):
        if header.is_child or header.attempt != attempt:
            continue
        with contextlib.suppress(OSError, ValueError), contextlib.closing(Ring(path)) as ring:
            numbers = [each[5] for each in ring.read() if each[3] == records.PHASE]
            phases = [records.PHASES[each] for each in numbers if each < len(records.PHASES)]
            if ring.lost or {"init_process_group", "first_step"}.intersection(phases):
                return None
            waiting.append(phases[-1:] == ["rendezvous"])
    return bool(waiting) and all(waiting)


class Ring:
    """One ring file from record ``index`` on; ``header`` as last refreshed; ``lost``: overwritten unread.

    ``own_pid`` is the pid in its process's namespace; in a container the one in ``header`` differs.
    """

    def __init__(
        self, path: str, clock: Callable[[], float] = time.monotonic, enclosed: str | None = None
    ) -> None:
        """Open ``path``; ``clock`` gives monotonic seconds; raises OSError, or ValueError if it is no ring.

        ``enclosed`` is the folder of a run in a container: pids are then read as they are here.
        """
        self.name = os.path.basename(path)
        self.index = 0
        self.lost = 0
        self._clock = clock
        self._late = (-1, 0.0)
        self._enclosed = enclosed
        self._pids: dict[int, int] = {}
        # O_NONBLOCK: a job may make a pipe of this name, whose open would block.
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        if is_scarce(self._fd):
            self.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        try:
            self.header = self._read_header()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def refresh(self) -> Header:
        """Read the header again and return it; one that has become nonsense leaves the old one."""
        with contextlib.suppress(OSError, ValueError):
            self.header = self._read_header()
        return self.header

    @property
    def backlog(self) -> int:
        """Records written and not yet read, as of the last ``refresh``."""
        return max(0, self.header.written - self.index)

    def names(self) -> list[str]:
        used, size = min(max(0, self.header.names_used), records.MAX_NAMES), records.NAME_BYTES
        table = os.pread(self._fd, used * size, records.NAMES_OFFSET)
        starts = range(0, len(table) - size + 1, size)
        raw = [table[start : start + size].split(b"\0", 1)[0] for start in starts]
        return [name.decode("utf-8", "replace") for name in raw]

    def read(self, *, final: bool = False) -> list[Record]:
        """Return at most ``READ_BYTES`` of new records and advance; ``final``: its process has ended."""
        capacity, written = self.header.capacity, self.header.written
        if self.index < written - capacity:
            self.lost += written - capacity - self.index
            self.index = written - capacity
        if final:
            # Of two threads that record at a time, the one that is behind announces last.
            written += UNANNOUNCED_RECORDS
        if self.index >= written:
            return []
        slot = self.index % capacity
        count = min(written - self.index, capacity - slot, READ_BYTES // _RECORD_BYTES)
        data = os.pread(
            self._fd, count * _RECORD_BYTES, records.RECORDS_OFFSET + slot * _RECORD_BYTES
        )
        data = data[: len(data) // _RECORD_BYTES * _RECORD_BYTES]
        taken: list[Record] = list(records.RECORD.iter_unpack(data))
        for number, record in enumerate(taken):
            if record[3] in _OF_WORDS:
                taken[number] = records.WORDS.unpack_from(data, number * _RECORD_BYTES)
            elif record[3] == records.TIMES:
                taken[number] = step_of(data, number * _RECORD_BYTES)
        # The record with index i is being overwritten from the moment that i + capacity is next.
        safe_from = self.refresh().written - capacity + 1
        return self._accept(taken, safe_from, final=final)

    def before(self, count: int) -> list[Record]:
        """Return up to ``count`` records before ``index`` that still stand, without advancing."""
        index, lost = self.index, self.lost
        self.index = max(0, index - count, self.header.written - self.header.capacity + 1)
        found: list[Record] = []
        while self.index < index:
            taken = self.read()
            if not taken:
                break
            found += taken
        self.index, self.lost = index, lost
        return [record for record in found if record[0] <= index]

    def _accept(self, taken: list[Record], safe_from: int, *, final: bool) -> list[Record]:
        """Advance over ``taken`` and return the records neither overwritten nor half written."""
        announced = self.header.written
        good: list[Record] = []
        for record in taken:
            sequence = record[0]
            if sequence == self.index + 1 and self.index >= safe_from:
                good.append(record)
            else:
                overwritten = sequence > self.index + 1 or self.index < safe_from
                missing = self.index < announced and (final or self._is_overdue())
                if not (overwritten or missing):
                    break
                self.lost += 1
            self.index += 1
        return good

    def _is_overdue(self) -> bool:
        """Return True if the next record was announced long ago and will not come.

        A thread that took its number and was interrupted writes its record after later ones.
        """
        if self._late[0] != self.index:
            self._late = (self.index, self._clock())
        return self._clock() - self._late[1] > OVERDUE_SECONDS

    def _read_header(self) -> Header:
        data = os.pread(self._fd, records.HEADER.size, 0)
        if len(data) < records.HEADER.size:
            raise ValueError("too short for a ring")
        header = Header(*records.HEADER.unpack(data))
        if header.magic not in _MAGICS and header.magic.startswith(records.MAGIC[:6]):
            raise OSError(errno.EPROTONOSUPPORT, "another version of distconsole wrote it")
        if header.magic not in _MAGICS or header.record_bytes != _RECORD_BYTES:
            raise ValueError("not a ring")
        if not 0 < header.capacity <= MAX_RING_CAPACITY or not 0 <= header.written < 1 << 62:
            raise ValueError("a ring of impossible size")
        self.own_pid = header.pid
        if self._enclosed is None:
            return header
        for inner in (header.pid, header.parent_pid):
            if inner not in self._pids:
                self._pids[inner] = host_pid(inner, self._enclosed, header.rank)
        return header._replace(
            pid=self._pids[header.pid], parent_pid=self._pids[header.parent_pid]
        )
