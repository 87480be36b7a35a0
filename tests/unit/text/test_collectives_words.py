"""``bench collectives`` as lines, and what of a check's report it is made of."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest

from distconsole.checks.engine.results import fail
from distconsole.cli.main import exit_code_of
from distconsole.cli.streams import Streams
from distconsole.model.check_outcome import with_outcome
from distconsole.model.reports import (
    CheckOutcome,
    CheckReport,
    CollectiveReport,
    HostReport,
    VerifiedReport,
)
from distconsole.model.requests import BenchCollectives, LauncherName
from distconsole.operations.bench.collectives import CHECKS, measure_report
from distconsole.text.check import bandwidth_text, size_text
from distconsole.text.show import show_for
from fakes.blank import blank


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
    out, err = io.StringIO(), io.StringIO()
    streams = Streams(out, err)
    ended = measure_report(LauncherName.MPI, report)
    show = show_for(BenchCollectives(json=as_json), streams)
    show.event(ended)
    show.finish()
    streams.close()
    return out.getvalue(), exit_code_of(ended)


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
        (
            {"collectives": (), "hosts": {"a": HostReport(reachable=False, facts={})}},
            3,
            "",
        ),
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
    assert [size_text(size) for size in sizes] == ["4 B", "1000 B", "64 KiB", "64 MiB", "1 GiB"]
