"""Writes the ring that the agent reads: no lock, no socket and no system call per record."""

# Importing pathlib would cost more than everything else here.
# ruff: noqa: PTH104, PTH108, PTH118, PTH119

from __future__ import annotations

import math
import mmap
import os
import struct
import sys
import time
import zlib
from itertools import count

from distconsole_training import records
from distconsole_training.guard import tally
from distconsole_training.identity import Identity

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_NAN = math.nan
_INT64 = struct.Struct("<q")
_INT32 = struct.Struct("<i")


class Recorder:
    """One ring file of this process, mapped.

    The file is allocated in full before it is mapped, so that a full disk or a full ``/dev/shm``
    is an error here and never a SIGBUS in the job.

    Attributes:
        sequences: Gives the next record's number, from 1; atomic, so that every thread may ask.
        words, halves, doubles: The map as words of 64 bits, as those from its fourth byte on, and as floats.
    """

    def __init__(
        self,
        folder: str,
        identity: Identity,
        started_ns: int,
        started_time_ns: int,
        capacity: int = records.DEFAULT_CAPACITY,
        flags: int = 0,
    ) -> None:
        """Create the ring in ``folder``; raises OSError without room or permission."""
        self.path = os.path.join(folder, f"{os.getpid()}-{started_time_ns}{records.RING_SUFFIX}")
        self.capacity, self._flags = capacity, flags
        self.map = _map_file(self.path, records.RECORDS_OFFSET + capacity * records.RECORD.size)
        whole = memoryview(self.map)
        self.words, self.doubles = whole.cast("q"), whole.cast("d")
        self.halves = whole[4:-4].cast("q")
        self.sequences = count(1)
        self._names: dict[str, int] = {}
        run = os.environ.get(records.ENV_RUN, "").encode("utf-8", "replace")
        text = os.environ.get(records.ENV_ATTEMPT, "")
        attempt = int(text) if text.isdecimal() and len(text) < 9 else 0
        words = getattr(sys, "argv", [])
        title = os.path.basename(words[0] if words else "").encode("utf-8", "replace")[:64]
        ours = records.MAGIC, records.RECORD.size, capacity, attempt, os.getpid()
        counted = 0, 0, tally.errors  # names used, written, guard errors
        started = started_time_ns, started_ns
        last = zlib.crc32(run), os.getppid(), flags, title
        records.HEADER.pack_into(self.map, 0, *ours, *identity, *counted, *started, *last)
        # The name is the announcement: a reader never sees a ring without its header.
        os.rename(self.path + ".new", self.path)
        tally.on_error = self._put_errors

    def write(
        self,
        kind: int,
        step: int,
        time_ns: int,
        flags: int = 0,
        name: int = 0,
        samples: int = 0,
        a: float = _NAN,
        b: float = _NAN,
        c: float = _NAN,
        d: float = _NAN,
        e: float = _NAN,
        value: float = _NAN,
    ) -> None:
        """Store one record; the oldest is overwritten when the ring is full."""
        known = samples if 0 <= samples <= records.MAX_SAMPLES else 0
        head = step, time_ns, kind, flags, name, known
        self._store(records.RECORD, *head, a, b, c, d, e, value)

    def write_words(
        self,
        kind: int,
        step: int,
        time_ns: int,
        words: Sequence[int],
        flags: int = 0,
        name: int = 0,
        samples: int = 0,
    ) -> None:
        """Store one record of four words of 64 bits."""
        self._store(records.WORDS, step, time_ns, kind, flags, name, samples, *words)

    def phase(
        self, name: str, time_ns: int, world: Identity | None = None, flags: int = 0
    ) -> None:
        """Store that a start-up phase (one of ``records.PHASES``) was reached at ``time_ns``."""
        size, rank = (0, -1) if world is None else (world.world_size, world.rank)
        value = rank if rank >= 0 else _NAN
        self.write(records.PHASE, 0, time_ns, flags, records.PHASES.index(name), size, value=value)

    def metric(self, name: str, step: int, value: float, samples: int) -> None:
        """Store a reported metric; a name beyond ``MAX_NAMES`` is not stored."""
        index = self._name_index(name)
        if index is not None:
            self.write(
                records.METRIC, step, time.monotonic_ns(), name=index, samples=samples, value=value
            )

    def identify(self, identity: Identity) -> None:
        """Store this process's rank and world, as soon as they are known."""
        for offset, value in (
            (records.OFFSET_LOCAL_RANK, identity.local_rank),
            (records.OFFSET_WORLD_SIZE, identity.world_size),
            (records.OFFSET_RANK, identity.rank),
        ):
            _INT32.pack_into(self.map, offset, value)

    def close(self) -> None:
        """Give the mapping back, as a forked child does with its parent's; nothing can be written."""
        for view in (self.words, self.halves, self.doubles):
            view.release()
        self.map.close()

    def finish(self) -> None:
        """Store that the process went through its exit handlers."""
        flags = self._flags | records.HEADER_FINISHED
        _INT32.pack_into(self.map, records.OFFSET_FLAGS, flags)

    def _store(self, layout: struct.Struct, *fields: float) -> None:
        sequence = next(self.sequences)
        place = records.RECORDS_OFFSET + (sequence - 1) % self.capacity * layout.size
        layout.pack_into(self.map, place, sequence, *fields)
        _INT64.pack_into(self.map, records.OFFSET_WRITTEN, sequence)

    def _put_errors(self, errors: int) -> None:
        if not self.map.closed:
            _INT64.pack_into(self.map, records.OFFSET_GUARD_ERRORS, errors)

    def _name_index(self, name: str) -> int | None:
        index = self._names.get(name)
        if index is not None:
            return index
        # ``setdefault`` is atomic, so two threads with one new name get one entry.
        index = self._names.setdefault(name, len(self._names))
        if index >= records.MAX_NAMES:
            return None
        raw = name.encode("utf-8", "replace")[: records.NAME_BYTES]
        offset = records.NAMES_OFFSET + index * records.NAME_BYTES
        self.map[offset : offset + len(raw)] = raw
        _INT32.pack_into(self.map, records.OFFSET_NAMES_USED, index + 1)
        return index


def _map_file(path: str, size: int) -> mmap.mmap:
    """Return ``path`` with the suffix ``.new``, allocated in full and mapped; OSError without room."""
    aside = path + ".new"
    descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        if sys.version_info >= (3, 13):
            # Before that the mapping keeps a descriptor of its own.
            return mmap.mmap(descriptor, size, trackfd=False)
        return mmap.mmap(descriptor, size)
    except BaseException:
        os.unlink(aside)
        raise
    finally:
        os.close(descriptor)
