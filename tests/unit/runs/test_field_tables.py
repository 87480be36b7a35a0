"""The tables of fields: every one can be read of a row of which everything, or nothing, is known."""

from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from distconsole.expression import Fields, ValueKind, parse_condition
from distconsole.model.run_events import RankState
from distconsole.model.run_summary import RunSummary
from distconsole.runs.conditions.check_fields import CHECK_FIELDS, CheckRow
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow, load_rows
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, ranks_of
from distconsole.runs.conditions.summary_fields import summary_fields
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline
from fakes import scenes
from fakes.run_events import timeline_of


def a_run() -> RunTimeline:
    return timeline_of(scenes.straggling())


def an_unknown_rank() -> RunTimeline:
    timeline = RunTimeline()
    timeline.ranks[0] = RankView(0, "a")
    return timeline


SUMMARY = RunSummary(
    run="r-1",
    name="mine",
    state="failed",
    started=40.0,
    seconds=5.0,
    script="t.py",
    launcher="torch",
    world_size=4,
    hosts=("a", "b"),
    metrics={"loss": 0.5},
)
GPU = scenes.gpu(3, 100.0)
ROWS: list[tuple[Fields[Any], Any]] = [
    (RANK_FIELDS, ranks_of(a_run())[3]),
    (RANK_FIELDS, ranks_of(an_unknown_rank())[0]),
    (LOAD_FIELDS, load_rows(["node2"], {"node2": scenes.node("node2")}, [GPU], ("ann",))[0]),
    (LOAD_FIELDS, LoadRow("node2")),
    (summary_fields(lambda: 100.0), SUMMARY),
    (CHECK_FIELDS, CheckRow("net.mtu", ("a", "b"), "fail", ("frames of 9000 bytes are lost",))),
    (CHECK_FIELDS, CheckRow("net.mtu", (), "pass")),
]
KINDS = {ValueKind.NUMBER: (int, float), ValueKind.TEXT: (str, tuple), ValueKind.FLAG: (bool,)}


@pytest.mark.parametrize(("fields", "row"), ROWS, ids=lambda each: getattr(each, "of", ""))
def test_every_field_is_of_its_kind_or_unknown(fields: Fields[Any], row: Any) -> None:
    for field in fields:
        value = field.get(row)
        assert value is None or isinstance(value, KINDS[field.kind]), field.name
        assert field.about
        for twin in field.twins.values():
            assert fields.find(twin) is not None
        operand = {ValueKind.NUMBER: f"{field.name} < 3", ValueKind.TEXT: f"{field.name}=x"}
        parse_condition(operand.get(field.kind, field.name), fields).answers([row])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step_ms > 1.1 * median(step_ms)", [3]),
        ("step > 1.1 * median(step_ms)", [3]),
        ("host~node2 and state=running", [2, 3]),
        ("step_ms.p95_run > 1.1 * median(step_ms.p95_run)", [3]),
        ("run.state=running and run.loss > 0 and not lost", [0, 1, 2, 3]),
        ("metric.loss > 0 and loss < 100", [0, 1, 2, 3]),
        ("signal > 0", []),
    ],
)
def test_ranks_are_found(text: str, expected: list[int]) -> None:
    rows = ranks_of(a_run())
    assert [row.view.rank for row in parse_condition(text, RANK_FIELDS).matching(rows)] == expected


def test_what_is_averaged_over_a_run_goes_by_steps() -> None:
    timeline = RunTimeline()
    for steps, p95 in ((30, 10.0), (10, 50.0), (5, None)):
        window = scenes.window(0, 9, 1.0)
        timeline.apply(replace(window, steps=steps, step_ms_p95=p95))
    assert timeline.ranks[0].step_ms_p95_run == pytest.approx(20.0)
    assert timeline.ranks[0].state is RankState.STARTING


def test_who_uses_a_gpu() -> None:
    rows = [
        LoadRow("a", gpu=_gpu(rank=0), me=("ann",)),
        LoadRow("a", gpu=_gpu(strangers=("12 bob python x y",)), me=("ann",)),
        LoadRow("a", gpu=_gpu(strangers=("13 ann sh",)), me=("ann",)),
        LoadRow("b", me=("ann",)),
    ]

    def found(text: str) -> list[int]:
        matching = parse_condition(text, LOAD_FIELDS).matching(rows)
        return [rows.index(row) for row in matching]

    assert found("user!=me") == [1]
    assert found("user=me") == [0, 2]
    assert found("not user=me") == [1]
    assert found("strangers>0 and command~python") == [1]
    assert found("util<10") == [0, 1, 2]


def _gpu(**changed: Any) -> Any:
    return replace(GPU, **({"rank": UNSET, "util": 5.0, "strangers": ()} | changed))


def test_runs_are_found() -> None:
    fields = summary_fields(lambda: 100.0)
    for text in ("state=failed", "age>59s and age<=1min", "host=b", "hosts=2", "loss=0.5"):
        assert parse_condition(text, fields).matching([SUMMARY]) == [SUMMARY], text
    for text in ("exit>0", "error~oom", "seconds>10"):
        assert parse_condition(text, fields).matching([SUMMARY]) == [], text


def test_a_condition_on_the_rate_sees_a_stall_and_not_the_rate_of_before() -> None:
    run, t = RunTimeline(), scenes.START
    told = (scenes.window(0, 99, t), scenes.window(1, 99, t), scenes.node("node1", t + 9))
    for event in (scenes.plan(2), *told):
        run.apply(event)
    values = RANK_FIELDS.values(ranks_of(run)[0])
    assert (values["samples_s"], values["run.samples_s"]) == (0.0, 0.0)
