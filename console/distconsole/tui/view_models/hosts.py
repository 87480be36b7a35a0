"""The hosts' state after the events so far: a pure fold."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from distconsole.model.events import Event, HostStatus
from distconsole.model.run_events import BusyProcess, GpuKey, GpuSample, LinkChanged, NodeSample

Clock = Callable[[], float]
EACH_SECONDS, KEPT = 5.0, 60
"""Figures of hosts and GPUs are kept as means of this many seconds, and how many of them."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Clocks for ages; parameters, so that a view can be drawn as of any time."""

    unix: Clock = time.time
    monotonic: Clock = time.monotonic


class Recent:
    """A figure's last minutes; a reader in another thread sees the state before or after a write."""

    _kept: tuple[int, int, tuple[float | None, ...]] = (0, 0, ())
    """The place of the newest mean in time, its number of values, and the means."""

    def put(self, now: float, value: float | None) -> None:
        place, (newest, count, means) = int(now // EACH_SECONDS), self._kept
        if value is None or not math.isfinite(value) or place < newest:
            return
        if place == newest and means and (mean := means[-1]) is not None:
            self._kept = newest, count + 1, (*means[:-1], mean + (value - mean) / (count + 1))
        else:
            gap = (None,) * (min(place - newest, KEPT) - 1 if means else 0)
            self._kept = place, 1, (*means, *gap, value)[-KEPT:]

    def until(self, place: int) -> Sequence[float | None]:
        """Return ``KEPT`` means, the last one of ``place`` in units of ``EACH_SECONDS``; None without samples."""
        newest, _, means = self._kept
        row = (*(None,) * KEPT, *means, *(None,) * min(KEPT, max(0, place - newest)))
        return row[: len(row) - max(0, newest - place)][-KEPT:]


def sum_of(one: float | None, other: float | None) -> float | None:
    """Return the sum of both; None if one is unknown."""
    return None if one is None or other is None else one + other


def percent_of(part: float | None, whole: float | None) -> float | None:
    return 100 * part / whole if part is not None and whole else None


@dataclass(slots=True)
class LoadModel:
    """The hosts as last seen, by ``top``."""

    nodes: dict[str, NodeSample] = field(default_factory=dict)
    gpus: dict[GpuKey, GpuSample] = field(default_factory=dict)
    status: dict[str, HostStatus] = field(default_factory=dict)
    links: dict[str, LinkChanged] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)
    """Host -> monotonic seconds of its newest sample, on this machine's clock."""
    since: dict[str, float] = field(default_factory=dict)
    """Host -> the same for its first sample."""
    busy: dict[str, tuple[float, tuple[BusyProcess, ...]]] = field(default_factory=dict)
    """Host -> the time of its newest list of processes, as ``seen_at``, and the busiest of them."""
    cpu: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    net: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """Host -> bytes a second, in and out."""
    disk: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """Host -> bytes a second, read and written."""
    memory: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    gpu_memory: defaultdict[str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """Host -> percent of its memory, and of that of its GPUs."""
    use: defaultdict[GpuKey | str, Recent] = field(default_factory=lambda: defaultdict(Recent))
    """GPU, or the name of a host for all of its GPUs -> percent."""

    def fold(self, event: Event, now: float) -> None:
        match event:
            case NodeSample():
                self.nodes[event.host] = event
                self.seen_at[event.host] = now
                self.since.setdefault(event.host, now)
                if event.processes is not UNSET:
                    self.busy[event.host] = now, event.processes
                self.cpu[event.host].put(now, event.cpu)
                for kept, value in (
                    (self.net, sum_of(event.net_rx_s, event.net_tx_s)),
                    (self.disk, sum_of(event.disk_read_s, event.disk_write_s)),
                    (self.memory, percent_of(event.mem_used, event.mem_total)),
                ):
                    if value is not None:
                        kept[event.host].put(now, value)
            case GpuSample():
                self.gpus[event.key] = event
                self.use[event.key].put(now, event.util)
                self.use[event.host].put(now, event.util)
                self.gpu_memory[event.host].put(now, percent_of(event.mem_used, event.mem_total))
            case HostStatus():
                self.status[event.host] = event
            case LinkChanged():
                self.links[event.host] = event
            case _:
                pass

    def lost_because(self, host: str) -> str | None:
        """Return the reason for no connection to ``host`` now; None with one, or before the first."""
        status, link = self.status.get(host), self.links.get(host)
        if status is not None and not status.reachable:
            return status.detail or "not reachable"
        if link is not None and not link.connected:
            return link.reason or "connection lost"
        return None
