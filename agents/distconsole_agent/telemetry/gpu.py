"""Samples the GPUs without ever waiting longer than a deadline: the driver is asked in a thread.

It decides how old a value may be; what is asked, and how often, is ``reader`` and ``device``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distconsole_agent.contract.protocol import GPU_FIELDS
from distconsole_agent.telemetry.device import UnitReading
from distconsole_agent.telemetry.placement import KnownRanks, Placement, place
from distconsole_agent.telemetry.processes import ProcessTable
from distconsole_agent.telemetry.reader import Driver, GpuReader

DEADLINE_SECONDS = 0.25
"""How long one sample waits for the driver before it answers with what is there."""

STALE_SECONDS = 10.0
"""Values older than this are not shown any more; their age still is."""


REUSE_SECONDS = 0.15
"""Who asks within this time of another gets the same reading: rates need time between two."""


class GpuSampler:
    """Samples the GPUs of this host for any number of askers, one at a time.

    A driver that hangs, is reloaded or loses a GPU costs at most one deadline: the samples after
    it return at once with the last values and their age, until the driver answers again.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        deadline_seconds: float = DEADLINE_SECONDS,
        table: ProcessTable | None = None,
    ) -> None:
        self._clock = clock
        self._deadline_seconds = deadline_seconds
        self._reader = GpuReader(clock, table or ProcessTable())
        self._known = KnownRanks()
        self._pids: frozenset[int] = frozenset()
        self._asked_at: float | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._asked = threading.Event()
        self._answered = threading.Event()
        self._answered.set()

    def sample(self, ranks: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return ``GPU_FIELDS`` of each GPU, or of each instance where a GPU is in MIG mode.

        ``ranks`` holds ``rank, local_rank, pid, cuda_visible_devices`` (null: not set) of the
        ranks on this host, and may hold ``cuda_device_order``. Empty without NVML or a GPU, and
        until the driver first answered.
        """
        now = self._clock()
        self._pids = self._known.note(ranks, now)
        if self._asked_at is None or now - self._asked_at >= REUSE_SECONDS:
            self._ask(self._deadline_seconds)
        readings = [reading for of_gpu in self._reader.readings for reading in of_gpu]
        units = [reading.unit for reading in readings]
        placement = place(units, self._reader.listing, ranks, self._known)
        answered_at = self._clock()
        return [_entry(reading, placement, now, answered_at) for reading in readings]

    def driver(self, timeout_seconds: float) -> Driver | None:
        """Return the driver's version and number of GPUs; None without, or not known in time."""
        if self._reader.driver is None:
            self._ask(timeout_seconds)
        return self._reader.driver

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Let go of the driver; a thread that hangs in it is left behind (it is a daemon)."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping.set()
        self._answered.clear()
        self._asked.set()
        thread.join(timeout_seconds)

    def _ask(self, timeout_seconds: float) -> None:
        # Unanswered: a thread is still in the driver, and no second one may follow it there.
        if not self._answered.is_set() or self._reader.rests():
            return
        self._asked_at = self._clock()
        self._answered.clear()
        if self._thread is None:
            self._start()
        self._asked.set()
        self._answered.wait(timeout_seconds)

    def _start(self) -> None:
        self._asked.clear()
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._stopping,), name="gpu-reader", daemon=True
        )
        self._thread.start()

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._asked.wait()
            self._asked.clear()
            try:
                if not stopping.is_set():
                    self._reader.read(self._pids)
                if stopping.is_set():
                    self._reader.close()
            except BaseException:
                # Never seen; the next sample starts another thread.
                self._thread = None
                raise
            finally:
                self._answered.set()


def _entry(
    reading: UnitReading, placement: Placement, asked_at: float, now: float
) -> dict[str, Any]:
    entry: dict[str, Any] = dict.fromkeys(GPU_FIELDS)
    key = reading.unit.key
    age = None if reading.read_at is None else now - reading.read_at
    entry["processes"] = []
    if age is not None and age <= STALE_SECONDS:
        entry.update(reading.values)
        entry["processes"] = placement.processes.get(key, [])
    entry["gpu"] = reading.unit.index
    entry["uuid"] = reading.unit.uuid
    entry["name"] = reading.name
    entry["mig"] = reading.mig
    entry["rank"] = placement.ranks.get(key)
    if reading.read_at is not None and reading.read_at <= asked_at - REUSE_SECONDS:
        entry["age_s"] = round(now - reading.read_at, 1)
    return entry
