"""``trace`` on a node where not every rank's ring can be used."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

import pytest

from distconsole_agent.journal.rings import read_headers
from distconsole_agent.server import traces
from distconsole_agent.server.connection import Asked
from fakes.ring_writer import RingWriter


class Asker:
    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.said: list[dict[str, Any]] = []

    def send_item(self, item: dict[str, Any]) -> None:
        self.said.append(item)


def test_a_ring_that_went_away_costs_no_other_rank_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = [RingWriter(tmp_path / "rings", rank) for rank in (0, 1)]
    found = list(read_headers(str(tmp_path / "rings")))
    rings[0].path.unlink()
    monkeypatch.setattr(traces, "read_headers", lambda *_: found)
    monkeypatch.setattr(traces, "read_spec", lambda _: {})
    for ring in rings:
        ring.close()
    asker = Asker()
    asked = {"seconds": 0.01, "wait": 0.0, "max_bytes": 1000}
    traces.trace(asked, cast("Asked", asker), str(tmp_path))
    tracing, *ended = asker.said
    assert tracing == {"tracing": [0, 1]}
    errors = {each["rank"]: each["told"]["error"] for each in ended}
    assert "No such file" in errors[0]
    assert errors[1] == traces.LATE
