"""``trace`` on a node where not every rank's ring can be used."""

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from distconsole_agent.contract.refusal import Refusal
from distconsole_agent.contract.requests import AgentRequest
from distconsole_agent.journal.rings import read_headers
from distconsole_agent.server import traces
from distconsole_agent.server.connection import PendingRequest
from fakes.ring_writer import RingWriter
from fakes.specs import run_spec


class Asker:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.said: list[dict[str, Any]] = []

    def send_item(self, item: dict[str, Any]) -> None:
        self.said.append(item)


def test_a_lost_ring_costs_no_other_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rings = [RingWriter(tmp_path / "rings", rank) for rank in (0, 1)]
    found = list(read_headers(str(tmp_path / "rings")))
    rings[0].path.unlink()
    monkeypatch.setattr(traces, "read_headers", lambda *_: found)
    monkeypatch.setattr(traces, "read_own_spec", lambda _: run_spec())
    for ring in rings:
        ring.close()
    asker = Asker()
    asked = AgentRequest(seconds=0.01, max_bytes=1000)
    traces.trace(asked, cast("PendingRequest", asker), str(tmp_path))
    tracing, *ended = asker.said
    assert tracing == {"tracing": [0, 1]}
    errors = {each["rank"]: each["told"]["error"] for each in ended}
    assert "No such file" in errors[0]
    assert errors[1] == traces.LATE


def test_a_trace_that_is_larger_than_it_may_be_is_left_out(tmp_path: Path) -> None:
    written = tmp_path / "0-1-1.json"
    written.write_bytes(bytes(3 << 20))
    one = traces._Wanted(0, 1, 1, str(tmp_path / "ring"), str(written))
    said = traces._pack(one, {}, 2 << 20)
    assert said["told"] == {"error": "its trace has 3 MiB, more than --max-mib allows"}
    assert list(tmp_path.iterdir()) == []


def test_rings_of_another_version_are_the_reason_why_no_rank_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = RingWriter(tmp_path / "rings", 0)
    with ring.path.open("r+b") as file:
        file.write(b"DCRING9\n")
    ring.close()
    monkeypatch.setattr(traces, "read_own_spec", lambda _: run_spec())
    asked = AgentRequest(seconds=0.01, max_bytes=1000)
    with pytest.raises(Refusal, match="another version of distconsole wrote it"):
        traces.trace(asked, cast("PendingRequest", Asker()), str(tmp_path))
