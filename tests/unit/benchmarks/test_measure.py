"""The arithmetic and the readings that every benchmark rests on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import measure
from benchmarks.alone import Row, run_alone


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
        assert process.stdin is not None
        assert process.stdout is not None
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
    def measured(rounds: int, steps_s: float) -> dict[str, float]:
        return {"product": rounds * steps_s}

    def rows(figures: dict[str, float]) -> list[Row]:
        return [Row("product", f"{figures['product']} steps")]

    file = tmp_path / "figures.json"
    words = ["--json", str(file), "--steps-s", "2.5"]
    figures = run_alone("small", None, measured, rows, words, rounds=4, steps_s=1.0)
    assert figures == {"product": 10.0}
    assert "| product | 10.0 steps" in capsys.readouterr().out
    assert json.loads(file.read_text())["benchmark"] == "small"
    with pytest.raises(SystemExit):
        run_alone("small", None, measured, rows, ["--rounds", "2.5"], rounds=4, steps_s=1.0)
