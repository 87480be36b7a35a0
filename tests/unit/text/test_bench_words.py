"""``bench strategies`` in words and as JSON."""

from __future__ import annotations

import io
import json

import msgspec
import pytest

from distconsole.cli.main import exit_code_of
from distconsole.cli.streams import Streams
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchResult,
    BenchRun,
    BenchSkipped,
    Event,
    Spread,
)
from distconsole.model.requests import Bench
from distconsole.model.run_events import EndState
from distconsole.text.show import show_for
from distconsole.text.tables import bar_text


def exactly(value: float) -> Spread:
    return Spread(median=value, lowest=value, highest=value)


SINGLE = BenchResult(
    strategy="single",
    launcher="single",
    ranks=1,
    devices=1,
    rounds=3,
    seconds=exactly(10.0),
    samples_s=exactly(100.0),
    speedup=exactly(1.0),
    efficiency=exactly(1.0),
    loss=exactly(1.5),
    accuracy=exactly(0.5),
    gpu_util=None,
)
DDP = msgspec.structs.replace(
    SINGLE,
    strategy="ddp",
    ranks=2,
    devices=2,
    samples_s=Spread(median=160.0, lowest=150.0, highest=170.0),
    speedup=exactly(1.6),
    efficiency=Spread(median=0.8, lowest=0.75, highest=0.85),
)
ENDED = BenchEnded(
    what="strategies",
    hosts=("a", "b"),
    images=512,
    batch=32,
    epochs=3,
    width=16,
    precision="fp32",
    rounds=3,
    strategies=(SINGLE, DDP),
    skipped=(BenchSkipped(strategy="horovod", reason="Horovod is missing on b"),),
    seconds=60.0,
    state=EndState.SUCCEEDED,
    exit_code=0,
)
FAILED = BenchRun(
    t=1.0,
    run="r1",
    strategy="ddp",
    round=2,
    rounds=3,
    state=EndState.FAILED,
    exit_code=7,
    seconds=3.0,
    error="rank 1 on b: ValueError: no",
)


def shown(*events: Event, json: bool = False) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    show = show_for(Bench(json=json), Streams(out, err))
    for event in events:
        show.event(event)
    show.finish()
    return out.getvalue(), err.getvalue()


def test_the_table_has_every_figure_and_the_chart_a_bar_each() -> None:
    out, err = shown(BenchProgress(strategy="ddp", round=1, rounds=3), ENDED)
    lines = out.splitlines()
    head = next(line for line in lines if line.startswith("strategy"))
    row = next(line for line in lines if line.startswith("ddp "))
    assert head.split("  ")[0] == "strategy"
    assert "160 [150-170]" in row
    assert "1.60" in row
    assert "80 [75-85]" in row
    assert "50.00" in row
    assert f"ddp     {'#' * 40} 160" in lines
    assert f"single  {'#' * 25} 100" in lines
    assert "horovod: cannot run here: Horovod is missing on b" in lines
    assert err == ""


def test_a_failed_run_says_so_and_where_to_look() -> None:
    _, err = shown(FAILED)
    assert "round 2 of 3: ddp failed: rank 1 on b: ValueError: no (distconsole logs r1)" in err


def test_a_stop_is_no_failure_and_prints_what_there_is() -> None:
    state = EndState.STOPPED
    run = msgspec.structs.replace(FAILED, state=state, exit_code=130, error="stopped")
    unfinished = msgspec.structs.replace(DDP, rounds=0, samples_s=None, error="stopped")
    ended = msgspec.structs.replace(ENDED, state=state, strategies=(SINGLE, unfinished))
    out, err = shown(run, ended)
    assert "FAIL" not in err
    assert "round 2 of 3: ddp  stopped" in err
    assert "single" in out
    assert "ddp" not in out


def test_json_is_a_line_a_run_and_the_result() -> None:
    out, _ = shown(BenchProgress(strategy="ddp", round=1, rounds=3), FAILED, ENDED, json=True)
    run, result = [json.loads(line) for line in out.splitlines()]
    assert (run["event"], run["run"], run["exit_code"]) == ("bench_run", "r1", 7)
    assert (result["event"], result["what"]) == ("bench", "strategies")
    assert result["strategies"][1]["samples_s"] == {
        "median": 160.0,
        "lowest": 150.0,
        "highest": 170.0,
    }
    assert result["strategies"][1]["gpu_util"] is None
    assert result["skipped"] == [{"strategy": "horovod", "reason": "Horovod is missing on b"}]


def test_the_result_decides_the_exit_code_and_single_runs_do_not() -> None:
    assert exit_code_of(FAILED) is None
    assert exit_code_of(ENDED) == 0
    assert exit_code_of(msgspec.structs.replace(ENDED, exit_code=130)) == 130


@pytest.mark.parametrize(
    ("share", "plain", "bar"),
    [
        (1.0, True, "####"),
        (0.5, True, "##"),
        (1.0, False, "████"),
        (0.53125, False, "██▏"),
        (0.0, False, ""),
    ],
)
def test_a_bar_is_as_long_as_its_share(share: float, plain: bool, bar: str) -> None:
    assert bar_text(share, 4, plain=plain) == bar
