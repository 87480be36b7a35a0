"""Traces of several ranks become one: processes, clocks, arrows, and files that are none."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from distconsole.formats.merged_trace import Merged, RankTrace, TraceError, merge

BASE_NS = 1_790_000_000_000_000_000
MS = 1_000_000


def span(name: str, began_ms: float, ms: float, pid: int = 700) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": 1, "ts": began_ms * 1e3, "dur": ms * 1e3}


def one_step(late_ms: float = 0.0, clock_ms: float = 0.0) -> list[dict[str, Any]]:
    """A step of 20 ms with one collective that ends after 12 ms, on a clock that is ahead."""
    return [
        {"ph": "M", "name": "process_labels", "pid": 700, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_labels", "pid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "process_labels", "pid": 5, "args": {"labels": "GPU 5"}},
        span("Record Window End", 0, 0, pid=700) | {"pid": "Traces"},
        span("step 7", clock_ms, 20),
        span("gloo:all_reduce", clock_ms + late_ms, 12 - late_ms),
        span("kernel", clock_ms + 1, 2, pid=0),
        {"ph": "s", "name": "ac2g", "id": 3, "pid": 700, "tid": 1, "ts": clock_ms * 1e3},
    ]


def rank_trace(
    folder: Path, rank: int, events: object, ahead_ms: float = 0.0, sure_to_ms: float = 0.0
) -> RankTrace:
    path = folder / f"{rank}.json.gz"
    data = json.dumps({"baseTimeNanoseconds": BASE_NS, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(data))
    host = f"node{rank + 1}"
    return RankTrace(rank, host, path, len(data), round(ahead_ms * MS), round(sure_to_ms * MS))


def merged(*traces: RankTrace) -> tuple[Merged, list[dict[str, Any]]]:
    file = io.BytesIO()
    said = merge(traces, file)
    events = json.loads(file.getvalue())["traceEvents"]
    assert said.events == len(events)
    return said, events


def test_ranks_and_the_gpus_that_they_use_are_processes(tmp_path: Path) -> None:
    _, events = merged(*(rank_trace(tmp_path, rank, one_step()) for rank in (0, 1)))
    names = {one["pid"]: one["args"]["name"] for one in events if one["name"] == "process_name"}
    assert sorted(names.values()) == [
        "rank 0 on node1",
        "rank 0 on node1, GPU 0",
        "rank 1 on node2",
        "rank 1 on node2, GPU 0",
    ]
    assert {one["pid"] for one in events} == set(names)
    assert {names[one["pid"]] for one in events if one["name"] == "kernel"} == {
        "rank 0 on node1, GPU 0",
        "rank 1 on node2, GPU 0",
    }
    assert len({one["id"] for one in events if one["name"] == "ac2g"}) == 2


def test_an_arrow_goes_from_the_rank_that_came_last(tmp_path: Path) -> None:
    said, events = merged(
        rank_trace(tmp_path, 0, one_step()), rank_trace(tmp_path, 1, one_step(late_ms=9))
    )
    assert said.collectives == 1
    start, end = [one for one in events if one.get("cat") == "collective"]
    assert (start["ph"], end["ph"], start["id"]) == ("s", "f", end["id"])
    assert start["name"] == "waits for rank 1"
    late = next(
        one for one in events if one["name"] == "gloo:all_reduce" and one["pid"] == start["pid"]
    )
    assert start["ts"] == late["ts"] == 9_000


@pytest.mark.parametrize(
    ("clock_ms", "ahead_ms", "sure_to_ms", "left_ms"),
    [
        pytest.param(50, 50, 0, 0, id="a clock that the round trip has told is set by it"),
        pytest.param(50.4, 50, 0.5, 0, id="what the round trip leaves open, the collectives tell"),
        pytest.param(53, 50, 0.5, 2.5, id="they are believed no further than that"),
    ],
)
def test_clocks_are_one(
    tmp_path: Path, clock_ms: float, ahead_ms: float, sure_to_ms: float, left_ms: float
) -> None:
    _, events = merged(
        rank_trace(tmp_path, 0, one_step()),
        rank_trace(tmp_path, 1, one_step(clock_ms=clock_ms), ahead_ms, sure_to_ms),
    )
    first, second = (one["ts"] for one in events if one["name"] == "step 7")
    assert second - first == pytest.approx(left_ms * 1e3, abs=1)
    assert min(one["ts"] for one in events if one["ph"] != "M") == pytest.approx(0, abs=1)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no gzip", id="no gzip"),
        pytest.param(gzip.compress(b"{"), id="no JSON"),
        pytest.param(gzip.compress(b'{"traceEvents": [5]}'), id="no events"),
        pytest.param(gzip.compress(b'{"traceEvents": []}'.ljust(5000)), id="too long"),
        pytest.param(gzip.compress(b"[" * 4000), id="too deep"),
    ],
)
def test_a_trace_that_is_none_is_refused_by_its_rank(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="the trace of rank 3"):
        merge([RankTrace(3, "node1", path, 4000, 0, 0)], io.BytesIO())
