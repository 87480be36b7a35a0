"""The summary of the benchmarks: its verdicts and its table."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cuts, hook_cost, keys, memory, start, tui_cost, verify_cost
from benchmarks.alone import Row, table
from benchmarks.report import QUICK, main


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median}


def starts(ratio: float) -> dict[str, Any]:
    seconds = {"by_hand": spread(2.0), "warm": spread(2.0 * ratio), "cold": spread(9.0)}
    return {
        "seconds": seconds,
        "script_seconds": seconds,
        "ratios": {"warm": spread(ratio), "cold": spread(4.5)},
        "target": 1.15,
    }


@pytest.mark.parametrize(("ratio", "met"), [(1.15, True), (1.16, False)])
def test_only_the_warm_start_is_judged_and_by_its_ratio(ratio: float, met: bool) -> None:
    judged = [row for row in start.rows(starts(ratio)) if row.met is not None]
    assert [(row.figure, row.met) for row in judged] == [("start, warm", met)]


def test_one_lost_record_misses_the_target() -> None:
    found = {"cuts": 1, "steps_s_a_rank": 99.0, "blind_spots": 0, "audit": {"steps": 10}}
    assert cuts.rows({"network": {**found, "off": 0}})[0].met is True
    assert cuts.rows({"network": {**found, "off": 1}})[0].met is False


@pytest.mark.parametrize(("seconds", "met"), [(0.05, True), (0.051, False)])
def test_a_key_that_waits_misses_the_target(seconds: float, met: bool) -> None:
    tail = {"median": 0.01, "p99": seconds, "longest": 1.0}
    (row,) = keys.rows({"run": {"seconds": tail, "cpu_seconds": tail}})
    assert row.met is met


def test_a_missing_line_misses_the_target() -> None:
    figures = {
        "lines": 10,
        "received": [10, 9],
        "shown": [10, 8],
        "peak_rss_bytes": {"console": 2**20},
        "seconds": {"ours": spread(2.0)},
        "ratio": spread(2.0),
    }
    assert memory.rows(figures)[0].met is False


@pytest.mark.parametrize("name", QUICK)
def test_every_benchmark_has_its_rows(name: str) -> None:
    assert callable(import_module(f"benchmarks.{name}").rows)


@pytest.mark.parametrize(("ratio", "met"), [(1.005, True), (1.006, False)])
def test_the_hook_is_judged_by_its_ratio_and_shown_with_the_noise(ratio: float, met: bool) -> None:
    found = {
        "ratio": spread(ratio),
        "floor": spread(0.9),
        "bare_seconds": spread(0.01),
        "target": 1.005,
    }
    loop = {
        kind: {"least_us": 300.0, "paired_us": spread(more)}
        for kind, more in (("bare", 0.0), ("watched", 12.0), ("again", 0.1), ("traceml", 210.0))
    }
    rows = hook_cost.rows({"ddp": {"10 ms": found}, "loop": loop, "target_us": 10.0})
    assert [row.met for row in rows] == [met, False]
    assert "0.9000" in rows[0].reference
    assert rows[1].reference == "bare +0.1, TraceML +210.0 µs"


@pytest.mark.parametrize(("share", "met"), [(0.01, True), (0.011, False)])
def test_verification_is_judged_by_its_share(share: float, met: bool) -> None:
    names = ("share", "floor", "check_seconds", "step_seconds")
    models = {"mlp": {name: spread(share) for name in names}}
    (row,) = verify_cost.rows({"models": models, "target": 0.01, "each": 100})
    assert row.met is met


def test_the_screen_stands_next_to_its_peer() -> None:
    cost = {"cpu_share": 0.031, "rss_bytes": 50 * 2**20, "bytes_s": 1234.0}
    (row,) = tui_cost.rows({"console": {"8": cost}, "datatable": {"8": cost}})
    assert row.measured == "3.1% of a core, 50 MiB, 1,234 bytes/s"
    assert row.measured in row.reference


def test_a_row_shows_its_verdict_under_the_right_head() -> None:
    head, rule, line = table([Row("f", "1 s", "2 s", "≤ 1 s", False)]).splitlines()
    assert len(head) == len(rule) == len(line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "f",
        "1 s",
        "2 s",
        "≤ 1 s",
        "MISSED",
    ]


def test_what_lies_there_is_shown_without_measuring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"benchmark": "start", "machine": {}, "figures": starts(1.1)}
    (tmp_path / "start.json").write_text(json.dumps(document))
    assert main(["--no-run", "--out", str(tmp_path)]) == 0
    assert "start, warm" in capsys.readouterr().out


def line(number: int) -> bytes:
    return b"[0 node1] %d and more\n" % number


@pytest.mark.parametrize(
    ("output", "narration", "counts"),
    [
        (line(0) + line(1), b"", (2, 2)),
        (line(0) + b"[0 node1] [distconsole: 1,200 lines (9 characters)\n" + line(1201), b"", (1202, 2)),
        (line(0) + line(8), b"warn 7 lines (99 bytes) of rank 0 are not shown: it", (9, 2)),
        (line(0) + line(8), b"", (-1, 1)),
    ],
)  # fmt: skip
def test_a_line_counts_that_is_shown_or_named_as_missing(
    output: bytes, narration: bytes, counts: tuple[int, int]
) -> None:
    assert memory.count_lines(output, narration) == counts
