"""``bench strategies`` and ``bench collectives`` in words and as JSON."""

import json
from typing import Any

import msgspec
import pytest

from distconsole.checks.engine.results import fail
from distconsole.cli.main import exit_code_of
from distconsole.model.check_outcome import with_outcome
from distconsole.model.events import (
    BenchEnded,
    BenchProgress,
    BenchResult,
    BenchRun,
    BenchSkipped,
    Event,
    Spread,
)
from distconsole.model.reports import (
    CheckOutcome,
    CheckReport,
    CollectiveReport,
    HostReport,
    VerifiedReport,
)
from distconsole.model.requests import Bench, BenchCollectives, LauncherName
from distconsole.model.run_events import EndState
from distconsole.operations.bench.collectives import CHECKS, measure_report
from distconsole.text.check import bandwidth_text, exact_size_text
from distconsole.text.tables import bar_text
from fakes.blank import blank
from suite.printing import print_events


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
    return print_events(Bench(json=json), *events)


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


def timed(op: str, count: int, time_us: float, **more: Any) -> CollectiveReport:
    bandwidth = count / time_us / 1e3
    known: dict[str, Any] = {"correct": True, "dtype": "float32", **more}
    return CollectiveReport(
        launcher="mpi",
        backend="mpi",
        op=op,
        bytes=count,
        time_us=time_us,
        algbw_gbs=bandwidth,
        busbw_gbs=bandwidth * 1.5,
        size=4,
        ranks=(0, 1, 2, 3),
        **known,
    )


REPORT = blank(
    CheckReport,
    ok=True,
    outcome=CheckOutcome.HEALTHY,
    hosts={name: HostReport(reachable=True, facts={}) for name in ("a", "b")},
    collectives=(
        timed("all_reduce", 4, 20.0),
        timed("all_reduce", 1 << 26, 40_000.0, correct=False),
        timed("barrier", 0, 12.0),
    ),
    verified=(
        VerifiedReport(op="all_reduce", dtype="int64", elements=1003, correct=True),
        VerifiedReport(op="broadcast", dtype="int64", elements=1003, correct=True),
        VerifiedReport(op="reduce", dtype="bfloat16", elements=1003, unsupported="MPI has none"),
    ),
    left_out=("mpi send_recv of 16777216 float32",),
    seconds=9.0,
)


def lines_of(report: CheckReport, *, as_json: bool = False) -> tuple[str, int | None]:
    ended = measure_report(LauncherName.MPI, report)
    return print_events(BenchCollectives(json=as_json), ended)[0], exit_code_of(ended)


def test_a_table_an_operation_and_what_else_there_is_to_tell() -> None:
    text, code = lines_of(REPORT)
    assert code == 0
    assert text.splitlines()[0].startswith("mpi/mpi, 4 ranks on a, b")
    rows = [line.split() for line in text.splitlines()]
    assert ["4", "B", "20.0", "<", "0.001", "<", "0.001", "exact"] in rows
    assert ["64", "MiB", "40,000", "1.678", "2.517", "WRONG"] in rows
    assert ["0", "B", "12.0"] in rows
    assert "int64 (1003 values): exact: all_reduce, broadcast" in text
    assert "not there: reduce bfloat16 (MPI has none)" in text
    assert "no time for mpi send_recv of 16777216 float32" in text


def test_one_rank_alone_has_no_bus_bandwidth() -> None:
    assert [bandwidth_text(gbs) for gbs in (0.0, 0.0004, 1.5)] == ["0.000", "< 0.001", "1.500"]


def test_json_has_the_fields_of_a_check() -> None:
    text, _ = lines_of(REPORT, as_json=True)
    event = json.loads(text)
    assert (event["event"], event["launcher"], event["state"]) == (
        "bench_collectives",
        "mpi",
        "succeeded",
    )
    assert set(event["collectives"][0]) >= {
        *("launcher", "backend", "op", "bytes", "time_us", "algbw_gbs", "busbw_gbs"),
        *("correct", "size", "ranks"),
    }


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        (
            {"findings": (fail("wrong values", ("b",), hint="h", check="mpi.correct"),)},
            1,
            "FAIL b: wrong values",
        ),
        (
            {"collectives": (), "why": {"a": {"mpi.launch": "no mpirun"}}},
            1,
            "not measured: no mpirun",
        ),
        ({"collectives": (), "hosts": {"a": HostReport(reachable=False, facts={})}}, 3, ""),
    ],
)
def test_what_could_not_be_measured_has_a_reason_and_an_exit_code(
    changed: dict[str, Any], code: int, words: str
) -> None:
    text, found = lines_of(with_outcome(msgspec.structs.replace(REPORT, **changed)))
    assert found == code
    assert words.lower() in text.lower()


def test_every_engine_has_its_own_checks_and_no_others() -> None:
    from distconsole.checks.engine.catalogue import select_rules

    ids = {name: {rule.id for rule in select_rules(only=only)} for name, only in CHECKS.items()}
    assert all(len(found) == 4 for found in ids.values()), ids
    assert {rule.group for rule in select_rules(only=CHECKS[LauncherName.TORCH])} == {"coll"}


def test_sizes_are_said_as_they_are_asked_for() -> None:
    sizes = (4, 1000, 65536, 1 << 26, 1 << 30)
    assert [exact_size_text(size) for size in sizes] == [
        "4 B",
        "1000 B",
        "64 KiB",
        "64 MiB",
        "1 GiB",
    ]
