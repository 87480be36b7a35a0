"""``top --once``: every host that was reached is in the answer."""

from __future__ import annotations

import pytest

from distconsole.model.events import HostStatus
from distconsole.model.names import HostName
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.operations import top

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
