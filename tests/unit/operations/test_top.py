"""``top --once``: every host that was reached is in the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from distconsole.model.events import HostStatus
from distconsole.model.names import HostName
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.operations import top
from distconsole.rpc.frames import NodeLoad, SampleBody
from distconsole.session import Session

A, B, C = HostName("a"), HostName("b"), HostName("c")


def sample(host: HostName) -> NodeSample:
    return NodeSample(
        t=1.0, run="", host=host, cpu=3.0, mem_used=1, mem_total=2, net_rx_s=None, net_tx_s=None
    )


class Watch(top.LoadWatch):
    """What hosts tell, as a list."""

    def __init__(self, *told: tuple[HostName, list[NodeSample | GpuSample] | HostStatus]) -> None:
        self._told = list(told)

    def next(self) -> tuple[HostName, list[NodeSample | GpuSample] | HostStatus] | None:
        return self._told.pop(0) if self._told else None


def test_a_host_without_a_sample_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "FIRST_SAMPLE_SECONDS", 0.05)
    gone = HostStatus(host=B, reachable=False, detail="gone")
    watch = Watch((A, [sample(A)]), (B, gone), (A, [sample(A)]))
    told = list(top._once(watch, [A, B, C]))
    assert told[:2] == [sample(A), gone]
    (late,) = told[2:]
    assert isinstance(late, HostStatus)
    assert (late.host, late.reachable) == (C, False)
    assert "told nothing of its load for 0.05 s" in late.detail


class Ends:
    """A host whose agent ends the stream once, and then goes on."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False
        self.told: SampleBody | None = SampleBody(t=1.0, node=NodeLoad(cpu=3.0))

    def link(self, _name: str) -> Ends:
        return self

    @contextmanager
    def stream(self, _op: str, **_arguments: object) -> Iterator[Ends]:
        self.asked += 1
        yield self

    def close(self) -> None:
        self.closed = True
        self.listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self.listener = listener
        listener()

    def take(self, _timeout: float | None) -> SampleBody | None:
        if self.asked == 1 or self.closed:
            raise StopIteration
        told, self.told = self.told, None
        return told


def test_a_stream_that_an_agent_ends_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "RETRY_SECONDS", 0.01)
    host = Ends()
    watch = top.LoadWatch(cast("Session", host), [A], 1.0)
    try:
        told = (watch.next() for _ in range(100))
        assert any(news is not None and isinstance(news[1], list) for news in told)
    finally:
        watch.close()
    assert host.asked == 2
