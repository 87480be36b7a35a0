"""What the hosts look like after the events so far: a pure fold."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from distconsole.model.events import Event, HostStatus
from distconsole.model.run_events import GpuKey, GpuSample, LinkChanged, NodeSample

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Clocks:
    """The times that ages are counted from; parameters, so that a view can be drawn as of any time."""

    unix: Clock = time.time
    monotonic: Clock = time.monotonic


@dataclass(slots=True)
class LoadModel:
    """The hosts as last seen, by ``top``."""

    nodes: dict[str, NodeSample] = field(default_factory=dict)
    gpus: dict[GpuKey, GpuSample] = field(default_factory=dict)
    status: dict[str, HostStatus] = field(default_factory=dict)
    links: dict[str, LinkChanged] = field(default_factory=dict)
    seen_at: dict[str, float] = field(default_factory=dict)
    """Host -> monotonic seconds of its newest sample, on this machine's clock."""

    def fold(self, event: Event, now: float) -> None:
        match event:
            case NodeSample():
                self.nodes[event.host] = event
                self.seen_at[event.host] = now
            case GpuSample():
                self.gpus[event.key] = event
            case HostStatus():
                self.status[event.host] = event
            case LinkChanged():
                self.links[event.host] = event
            case _:
                pass

    def lost_because(self, host: str) -> str | None:
        """Return why there is no connection to ``host`` right now; None if there is one, or none yet."""
        status, link = self.status.get(host), self.links.get(host)
        if status is not None and not status.reachable:
            return status.detail or "not reachable"
        if link is not None and not link.connected:
            return link.reason or "connection lost"
        return None
