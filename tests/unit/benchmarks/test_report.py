"""The summary of the benchmarks: its verdicts and its table.
The audit that the figure of lost records rests on: it must see what is lost and what is doubled.

The arithmetic and the readings that every benchmark rests on.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib import import_module
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import (
    check_time,
    cuts,
    hook_cost,
    keys,
    measure,
    memory,
    start,
    tui_cost,
    verify_cost,
)
from benchmarks.alone import Row, run_alone, table
from benchmarks.cuts import audit, blind_spots
from benchmarks.report import QUICK, main
from distconsole.model.names import HostName
from distconsole.runs.store.run_file import StoredEntry


def spread(median: float) -> dict[str, float]:
    return {"median": median, "low": median, "high": median}


def starts(ratio: float) -> dict[str, Any]:
    over = {"warm": ratio, "cold": 4.5}
    return {
        "seconds": {"by_hand": spread(2.0), "warm": spread(2.0 * ratio), "cold": spread(9.0)},
        "beside": {"script at": {"warm": spread(0.5)}},
        "lines": [
            {**asdict(line), "over": spread(over[line.kind]) if line.kind in over else None}
            for line in start.LINES
            if line.kind in over or line.kind == "by_hand"
        ],
    }


@pytest.mark.parametrize(("ratio", "met"), [(1.15, True), (1.16, False)])
def test_only_the_warm_start_is_judged_and_by_its_ratio(ratio: float, met: bool) -> None:
    by_hand, warm, cold = start.rows(starts(ratio))
    assert by_hand == Row("start, by hand over ssh", "2.00 [2.00-2.00] s")
    assert warm.measured.endswith("s (script at 0.50 [0.50-0.50] s)")
    assert (warm.target, warm.met) == ("≤ 1.15 of by hand", met)
    assert cold.reference == "4.50 [4.50-4.50] of by hand, 2.00 [2.00-2.00] s"
    assert cold.met is None


@pytest.mark.parametrize(("seconds", "met"), [(3.0, True), (3.1, False)])
def test_a_check_is_judged_by_its_seconds_beside_its_peer(seconds: float, met: bool) -> None:
    line = {**asdict(check_time.LINES[0]), "over": spread(9.0)}
    of = {"quick": spread(seconds), "ssh": spread(0.2)}
    (row,) = check_time.rows({"seconds": of, "beside": {}, "lines": [line]})
    assert (row.target, row.met) == ("≤ 3 s", met)
    assert row.reference.startswith("9.00 [9.00-9.00] of two ssh logins, 0.20")


def test_a_comparison_has_the_lines_of_what_was_measured() -> None:
    lines = [
        measure.Compared("x", "a", "b"),
        measure.Compared("y", "a", "c"),
        measure.Compared("z", "c"),
    ]
    figures = measure.compare({"a": lambda: 4.0, "b": lambda: 2.0}, 2, lines, CPU={"a": [1.0]})
    found = [(line["figure"], line["over"]) for line in figures["lines"]]
    assert found == [("x", measure.Spread(2.0, 2.0, 2.0)), ("y", None)]
    assert figures["beside"]["CPU"]["a"].median == 1.0


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
        "lines_printed": 10,
        "received": [10, 9],
        "shown": [10, 8],
        "peak_rss_bytes": {"console": 2**20},
    }
    assert memory.rows(figures)[0].met is False
    assert memory.failed(figures)


@pytest.mark.parametrize("name", QUICK)
def test_every_benchmark_has_its_rows_and_its_options(name: str) -> None:
    benchmark = import_module(f"benchmarks.{name}")
    assert callable(benchmark.rows)
    options = signature(benchmark.measure).parameters
    assert {word.strip("-").replace("-", "_") for word in QUICK[name][::2]} <= options.keys()


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
        (line(0) + line(8), b"warn 99 bytes (7 whole lines) of rank 0 are not shown: it", (9, 2)),
        (line(0) + line(8), b"", (-1, 1)),
    ],
)  # fmt: skip
def test_a_line_counts_that_is_shown_or_named_as_missing(
    output: bytes, narration: bytes, counts: tuple[int, int]
) -> None:
    assert memory.count_lines(output, narration) == counts


def entry(seq: int, **body: Any) -> StoredEntry:
    return StoredEntry(HostName("node1"), seq, float(seq), json.dumps(body).encode())


def printed(seq: int, text: str) -> StoredEntry:
    return entry(seq, kind="log", rank=0, stream="out", text=text)


WHOLE = [
    entry(1, kind="window", rank=0, steps=2, dropped=0),
    printed(2, "step 0\nste"),
    printed(3, "p 1\nstep 2\n"),
    entry(4, kind="window", rank=0, steps=1, dropped=0),
    printed(5, "total 3\n"),
]


def test_a_whole_run_adds_up() -> None:
    found = audit(WHOLE)
    assert (found.off, found.steps, found.ranks, found.entries) == (0, 3, 1, 5)


def test_a_lost_window_is_steps_off_and_a_gap() -> None:
    found = audit([WHOLE[0], *WHOLE[1:3], WHOLE[4]])
    assert (found.steps_off, found.gaps, found.lines_lost) == (1, 1, 0)


def test_a_window_counted_twice_is_seen_though_no_number_is_missing() -> None:
    again = entry(6, kind="window", rank=0, steps=2, dropped=0)
    found = audit([*WHOLE, again])
    assert (found.steps_off, found.gaps) == (2, 0)


def test_lost_and_doubled_lines_are_told_apart() -> None:
    without = [*WHOLE[:2], printed(3, "p 1\n"), *WHOLE[3:]]
    assert audit(without).lines_lost == 1
    doubled = [*WHOLE[:2], printed(3, "p 1\nstep 2\nstep 2\n"), *WHOLE[3:]]
    assert audit(doubled).lines_doubled == 1


def test_a_slice_counted_twice_makes_lines_that_nobody_printed() -> None:
    assert audit([*WHOLE[:2], *WHOLE[1:]]).lines_garbled == 1


def test_what_a_host_says_it_dropped_counts() -> None:
    assert audit([*WHOLE, entry(6, kind="window", rank=0, steps=0, dropped=7)]).off == 7


def test_the_audit_is_blind_to_none_of_the_planted_faults() -> None:
    assert blind_spots(WHOLE) == 0


def test_a_spread_is_the_median_with_its_range() -> None:
    spread = measure.Spread.of([3.0, 1.0, 2.0, 10.0])
    assert (spread.median, spread.low, spread.high) == (2.5, 1.0, 10.0)
    assert spread.text(100, 1) == "250.0 [100.0-1000.0]"


def test_no_measurement_has_no_median() -> None:
    with pytest.raises(ValueError, match="no measurement"):
        measure.Spread.of([])


def test_a_tail_is_what_one_in_a_hundred_exceeds() -> None:
    tail = measure.Tail.of([*range(1, 200), 1000])
    assert tail == measure.Tail(200, 101, 199, 1000)
    assert measure.Tail.of([5.0]) == measure.Tail(1, 5.0, 5.0, 5.0)
    with pytest.raises(ValueError, match="no measurement"):
        measure.Tail.of([])


def test_ratios_are_taken_within_a_round() -> None:
    assert measure.ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == measure.Spread(2.0, 1.0, 3.0)


def test_ratios_of_unequal_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        measure.ratios([1.0, 2.0], [1.0])


def test_contestants_take_turns_in_both_orders() -> None:
    order: list[str] = []

    def contestant(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = measure.alternate({"a": lambda: contestant("a"), "b": lambda: contestant("b")}, 3)
    assert "".join(order) == "abbaab"
    assert found == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}


def test_a_process_that_worked_cost_more_than_one_that_slept() -> None:
    work = "sum(range(3_000_000))"
    program = f"import sys\nfor line in sys.stdin:\n    {work} if line == 'work\\n' else 0\n    print('done', flush=True)\n"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def turn(order: str) -> None:
        process.stdin.write(f"{order}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"

    try:
        turn("rest")
        rested = measure.cost_during(process.pid, lambda: turn("rest"))
        worked = measure.cost_during(process.pid, lambda: turn("work"))
    finally:
        process.communicate(timeout=10)
    assert worked.cpu_share * worked.seconds > rested.cpu_share * rested.seconds > 0
    assert worked.rss_bytes > 2**20


def test_the_time_of_a_process_in_ticks_agrees_with_the_fine_one() -> None:
    pid = os.getpid()
    ticks = measure._cpu_ticks(pid) / os.sysconf("SC_CLK_TCK")
    assert ticks == pytest.approx(sum(os.times()[:2]), abs=0.05)


def test_figures_are_written_with_the_machine_they_belong_to(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    measure.write_json(path, "one", {"share": measure.Spread(2.0, 1.0, 3.0)})
    document = json.loads(path.read_text())
    assert document["benchmark"] == "one"
    assert document["machine"]["cpus"] == os.cpu_count()
    assert document["figures"] == {"share": {"median": 2.0, "low": 1.0, "high": 3.0}}


def test_a_benchmark_alone_takes_its_numbers_and_keeps_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(rounds: int = 4, steps_s: float = 1.0) -> dict[str, float]:
        return {"product": rounds * steps_s}

    def rows(figures: dict[str, float]) -> list[Row]:
        return [Row("product", f"{figures['product']} steps")]

    file = tmp_path / "figures.json"
    words = ["--json", str(file), "--steps-s", "2.5"]
    small = SimpleNamespace(__doc__=None, __name__="benchmarks.small", measure=measured, rows=rows)
    assert run_alone(small, words) == 0
    assert "| product | 10.0 steps" in capsys.readouterr().out
    document = json.loads(file.read_text())
    assert (document["benchmark"], document["figures"]) == ("small", {"product": 10.0})
    with pytest.raises(SystemExit):
        run_alone(small, ["--rounds", "2.5"])
    small.failed = lambda figures: figures["product"] == 8.0
    assert run_alone(small, ["--steps-s", "2"]) == 1
