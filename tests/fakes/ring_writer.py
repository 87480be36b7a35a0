"""Writes rings as ``records.py`` lays them out, without a rank: what a reader has to cope with."""

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path

from distconsole_training import records

NAN = float("nan")


class RingWriter:
    """One ring, written as a recorder would.

    Args:
        folder: Where the ring goes.
        rank: What its process believes to be; -1 for not known yet.
        pid: Its process; this one unless given.
        capacity: Records that it holds.
        attempt: Which one of the run its process is of, from 1; 0 as the first version wrote it.
        flags: Of its header, such as ``HEADER_CHILD``.
        clock_ns: The clock of its records; this machine's, whose zero is the machine's start.
    """

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        *,
        pid: int | None = None,
        capacity: int = 1024,
        parent_pid: int = 0,
        local_rank: int = 0,
        started_ns: int | None = None,
        attempt: int = 0,
        flags: int = 0,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.capacity = capacity
        self._clock_ns = clock_ns
        self.pid = os.getpid() if pid is None else pid
        self.written = 0
        self.names: list[str] = []
        started = time.time_ns() if started_ns is None else started_ns
        self.path = folder / f"{self.pid}-{started}{records.RING_SUFFIX}"
        size = records.RECORDS_OFFSET + capacity * records.RECORD.size
        with self.path.open("w+b") as file:
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        records.HEADER.pack_into(
            self._map, 0, records.MAGIC, records.RECORD.size, capacity, attempt, self.pid, rank,
            local_rank, 1, 0, 0, 0, started, clock_ns(), 0, parent_pid, flags, b"test",
        )  # fmt: skip

    def close(self) -> None:
        self._map.close()

    def put(
        self,
        kind: int,
        *,
        step: int = 0,
        time_ns: int | None = None,
        flags: int = 0,
        name: int = 0,
        samples: int = 0,
        seconds: tuple[float, float, float, float, float] = (NAN,) * 5,
        value: float = NAN,
    ) -> None:
        """Append one record."""
        at = records.RECORDS_OFFSET + self.written % self.capacity * records.RECORD.size
        moment = self._clock_ns() if time_ns is None else time_ns
        records.RECORD.pack_into(
            self._map, at, self.written + 1, step, moment, kind, flags, name, samples,
            *seconds, value,
        )  # fmt: skip
        self.written += 1
        struct.pack_into("<q", self._map, records.OFFSET_WRITTEN, self.written)

    def step(self, step: int, loss: float = NAN, *, seconds: float = 0.01, **more: int) -> None:
        self.put(
            records.STEP,
            step=step,
            value=loss,
            seconds=(seconds, 0.001, 0.002, 0.003, 0.004),
            **more,
        )

    def report(self, name: str, step: int, value: float, samples: int = 0) -> None:
        if name not in self.names:
            self.names.append(name)
            at = records.NAMES_OFFSET + (len(self.names) - 1) * records.NAME_BYTES
            encoded = name.encode()
            self._map[at : at + len(encoded)] = encoded
            struct.pack_into("<I", self._map, records.OFFSET_NAMES_USED, len(self.names))
        index = self.names.index(name)
        self.put(records.METRIC, step=step, name=index, value=value, samples=samples)

    def phase(self, name: str, world: int = 0, rank: float = NAN) -> None:
        self.put(records.PHASE, name=records.PHASES.index(name), samples=world, value=rank)

    def late_loss(self, step: int, value: float) -> None:
        self.put(records.LOSS, step=step, value=value)

    def set_rank(self, rank: int) -> None:
        struct.pack_into("<i", self._map, records.OFFSET_RANK, rank)

    def set_written(self, written: int) -> None:
        struct.pack_into("<q", self._map, records.OFFSET_WRITTEN, written)

    def set_guard_errors(self, count: int) -> None:
        struct.pack_into("<q", self._map, records.OFFSET_GUARD_ERRORS, count)

    def finish(self) -> None:
        struct.pack_into("<i", self._map, records.OFFSET_FLAGS, records.HEADER_FINISHED)
