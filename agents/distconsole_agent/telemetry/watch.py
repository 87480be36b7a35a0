"""Samples the node's load for whoever watches and for runs that go on."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from distconsole_agent.contract.limits import (
    MAX_WATCH_SECONDS,
    MIN_WATCH_SECONDS,
)
from distconsole_agent.contract.refusal import bad_request
from distconsole_agent.system.paces import to_next_second

if TYPE_CHECKING:
    from distconsole_agent.telemetry.gpu import GpuSampler
    from distconsole_agent.telemetry.host import HostSampler

AHEAD_SECONDS, MOST_AHEAD_SECONDS = 0.1, 0.4
"""A sample begins so long before the whole second, and the time the last one took, the second at most."""

DRIVER_SECONDS = 5.0
"""How long ``hello`` waits for the first answer of a GPU driver."""


Sample = dict[str, Any]
Target = tuple[list[dict[str, Any]], Callable[[Sample], None]]
"""The rank processes of a run, and what takes its sample."""


class Telemetry:
    """The one pair of samplers, made when first needed; any thread may ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host: HostSampler | None = None
        self._gpu: GpuSampler | None = None
        self._node: dict[str, Any] = {}
        self._node_at = 0.0

    def sample(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the body of a ``sample``; ``ranks`` are the processes to find on the GPUs."""
        with self._lock:
            host, gpu = self._samplers()
            # Rates are differences: two askers a moment apart share one reading.
            now = time.monotonic()
            if now - self._node_at >= MIN_WATCH_SECONDS or not self._node:
                self._node, self._node_at = host.sample(), now
            gpus = gpu.sample(ranks)
        return {"t": round(time.time(), 6), "node": self._node, "gpus": gpus}

    def describe(self) -> dict[str, Any]:
        """Return ``psutil``, ``nvml`` and ``gpus`` for ``hello``."""
        from distconsole_agent.telemetry.host import load_psutil

        with self._lock:
            _host, gpu = self._samplers()
            driver = gpu.driver(DRIVER_SECONDS)
        psutil = load_psutil()
        return {
            "psutil": str(psutil.__version__) if psutil is not None else None,
            "nvml": driver.version if driver is not None else None,
            "gpus": driver.gpus if driver is not None else 0,
        }

    def _samplers(self) -> tuple[HostSampler, GpuSampler]:
        from distconsole_agent.telemetry.gpu import GpuSampler
        from distconsole_agent.telemetry.host import HostSampler

        if self._host is None or self._gpu is None:
            self._host, self._gpu = HostSampler(), GpuSampler()
        return self._host, self._gpu


class Sampling:
    """Gives every active run a sample a second, from one thread that ends when there is none."""

    def __init__(
        self,
        telemetry: Telemetry,
        targets: Callable[[], list[Target]],
    ) -> None:
        self._telemetry = telemetry
        self._targets = targets
        self._lock = threading.Lock()
        self._running = False

    def ensure(self) -> None:
        """Start the thread unless it runs; one that cannot start now does the next time."""
        with self._lock:
            if not self._running:
                with contextlib.suppress(RuntimeError):
                    threading.Thread(target=self._run, name="sampling", daemon=True).start()
                    self._running = True

    def _run(self) -> None:
        try:
            while targets := self._current():
                began = time.monotonic()
                for ranks, give in targets:
                    give(self._telemetry.sample(ranks))
                took = time.monotonic() - began
                # It travels with the windows, which are due at the whole second.
                time.sleep(
                    to_next_second(time.time() + min(took, MOST_AHEAD_SECONDS) + AHEAD_SECONDS)
                )
        finally:
            self._running = False

    def _current(self) -> list[Target]:
        """Return the targets; without any, the thread counts as ended before ``ensure`` can ask."""
        with self._lock:
            targets = self._targets()
            self._running = bool(targets)
            return targets


def watch(
    telemetry: Telemetry,
    interval: object,
    ranks: Callable[[], list[dict[str, Any]]],
    send: Callable[[dict[str, Any]], None],
    cancelled: threading.Event,
) -> None:
    """Send a sample every ``interval`` seconds until cancelled.

    Raises Refusal when ``interval`` is not a number of seconds.
    """
    if (
        isinstance(interval, bool)
        or not isinstance(interval, (int, float))
        or interval != interval
    ):
        raise bad_request("interval is a number of seconds")
    seconds = min(max(float(interval), MIN_WATCH_SECONDS), MAX_WATCH_SECONDS)
    while not cancelled.is_set():
        send(telemetry.sample(ranks()))
        cancelled.wait(seconds)


def memory_total() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
