"""The table of ranks: which of its figures are of now, and how old the others are."""

import sys

import msgspec
import pytest

from distconsole.model.diagnosis.calls import Call, Collective, Place, Thread
from distconsole.model.findings import Severity
from distconsole.model.run_events import (
    EndState,
    LinkChanged,
    NodeSample,
    RankCalled,
    RankState,
    RunEnded,
    RunEvents,
    RunFinding,
    RunRestarted,
    Window,
)
from distconsole.runs.health import Tone, health_of
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.view_models.rank_rows import RankRows
from distconsole.tui.views.ranks import GPU_TITLES, RANK_COLUMNS, STEP_TITLES, unreported
from fakes import scenes
from fakes.run_events import timeline_of

T = scenes.START + 30
UNKNOWN = dict.fromkeys(("cpu", "mem_used", "mem_total", "net_rx_s", "net_tx_s"))
FIGURES = ("ms/step", "p95", "data ms", "samples/s", "loss")
OF_GPU = ("util%", "gpu memory", "temp", "power")


def told(number: int, t: float) -> list[RunEvents]:
    """What a rank, its GPU and its host tell at one moment."""
    sample = NodeSample(t=t, run=scenes.RUN, host=f"node{number // 2 + 1}", **UNKNOWN)
    return [scenes.window(number, 99, t), scenes.gpu(number, t), sample]


def test_a_column_stands_only_where_some_rank_reports_its_figure() -> None:
    timeline = RunTimeline()
    window = msgspec.structs.replace(scenes.window(0, 99, T), data_ms=None, samples_s=None)
    timeline.apply(window)
    assert unreported(timeline) == ["data ms", "samples/s", *GPU_TITLES]
    timeline.apply(scenes.window(1, 99, T))
    timeline.apply(scenes.gpu(1, T))
    assert unreported(timeline) == []


@pytest.mark.parametrize(
    ("loss", "shown"),
    [(0.10312, "0.1031"), (3.8931e-05, "3.9e-05"), (-3.8931e-05, "-3.9e-05"), (1e-5, "1e-05")],
)
def test_a_loss_is_never_cut(loss: float, shown: str) -> None:
    window = msgspec.structs.replace(scenes.window(0, 99, T), metrics={"loss": loss})
    column = next(column for column in RANK_COLUMNS if column.title == "loss")
    assert rows(window, now=T)[0]["loss"][0] == shown
    assert len(shown) <= column.width


def test_the_rank_that_is_waited_for_gives_way_to_how_long() -> None:
    timeline = timeline_of(scenes.training(4))
    row = next(iter(RankRows(timeline, scenes.MINUTE_LATER)))
    row = row._replace(wait_ms=25.0, slowest=1817)
    column = RANK_COLUMNS[-1]
    assert column.fill is not None
    assert column.fill(row, 25).plain == "waits 25 ms for rank 1817"
    assert column.fill(row, column.width).plain == "waits 25 ms"


def rows(*events: RunEvents, now: float) -> list[dict[str, tuple[str, str]]]:
    """Return column -> words and style, by rank."""
    timeline = timeline_of(
        [scenes.plan(4), *(scenes.rank(n, RankState.RUNNING) for n in range(4)), *events]
    )
    found = []
    for row in RankRows(timeline, now):
        cells = {}
        for column in RANK_COLUMNS:
            cell = column.cell(row)
            text = cell if isinstance(cell, str) else cell.plain
            spans = (
                "" if isinstance(cell, str) else " ".join(str(span.style) for span in cell.spans)
            )
            style = "" if isinstance(cell, str) else f"{cell.style}"
            cells[column.title] = (text.strip(), f"{style} {spans}".strip())
        found.append(cells)
    return found


GOING = [event for number in range(4) for event in told(number, T)]


def test_a_column_that_is_empty_until_the_first_step_is_in_step_titles() -> None:
    before = rows(*(event for event in GOING if not isinstance(event, Window)), now=T)[0]
    after = rows(*GOING, now=T)[0]
    assert {name for name in after if after[name][0] and not before[name][0]} == set(
        STEP_TITLES
    ) - {"where", "last 60 s", "own ms"}, "no rank says how long it waited"


def test_figures_that_are_of_now_are_bright() -> None:
    row = rows(*GOING, now=T + 1)[0]
    assert {row[name][1] for name in (*FIGURES, *OF_GPU)} == {""}
    assert row["samples/s"][0] == "430"
    assert row["state"] == ("running", "good")


@pytest.mark.parametrize(
    ("age", "words", "style"), [(7, "no step 7 s", "note"), (32, "no step 32 s", "bad")]
)
def test_in_a_stall_old_figures_are_grey_with_their_age_and_nothing_is_made(
    age: int, words: str, style: str
) -> None:
    now = T + age
    alive = [
        event for n in range(4) for event in told(n, now) if not hasattr(event, "step_ms_mean")
    ]
    stalled = [scenes.rank(n, RankState.STALLED, now) for n in range(4)] if age > 30 else []
    row = rows(*GOING, *alive, *stalled, now=now)[0]
    assert {row[name][1] for name in FIGURES} == {"faint"}
    assert row["samples/s"][0] == "0"
    assert row["parts"][1] == "faint"
    assert row["state"] == (words, style)
    assert {row[name][1] for name in OF_GPU} == {""}, "its GPU still tells"


def test_behind_a_cut_the_rate_is_not_known_and_all_is_grey() -> None:
    cut = LinkChanged(t=T + 1, run=scenes.RUN, host="node2", connected=False, reason="timed out")
    mine, lost = rows(*GOING, cut, now=T + 4)[1:3]
    assert mine["samples/s"] == ("429", "")
    assert lost["samples/s"] == ("–", "faint")
    assert {lost[name][1] for name in (*FIGURES, *OF_GPU, "use")} == {"faint"}
    assert lost["state"] == ("lost 3 s", "warn")


def test_a_host_that_says_nothing_makes_its_ranks_unknown_though_the_connection_stands() -> None:
    row = rows(*GOING, now=T + 20)[3]
    assert row["samples/s"] == ("–", "faint")
    assert row["state"][0] == "no word 20 s"
    assert {row[name][1] for name in OF_GPU} == {"faint"}


def test_after_the_end_no_figure_is_of_now() -> None:
    gone = [scenes.rank(number, RankState.EXITED, T + 1) for number in range(4)]
    end = RunEnded(t=T + 1, run=scenes.RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=31.0)
    row = rows(*GOING, *gone, end, now=T + 2)[0]
    assert row["samples/s"][0] == ""
    figures = (*FIGURES, *OF_GPU, "use", "parts")
    assert {row[name][1] for name in figures if row[name][0]} == {"faint"}


def test_a_rank_that_the_stop_ended_is_not_called_killed() -> None:
    killed = msgspec.structs.replace(
        scenes.rank(0, RankState.KILLED, T), exit_code=143, signal=15, stopped=True
    )
    by_others = msgspec.structs.replace(killed, rank=1, stopped=msgspec.UNSET)
    shown = rows(*GOING, killed, by_others, now=T)
    assert [row["state"][0] for row in shown[:2]] == ["ended by the stop", "killed (143)"]


def test_a_rank_that_starts_anew_has_no_figure_of_the_attempt_before() -> None:
    again = RunRestarted(t=T + 1, run=scenes.RUN, restart=1, of=3)
    first = msgspec.structs.replace(scenes.window(0, 120, T + 2), step_ms_mean=20.0)
    mine, other = rows(*GOING, again, first, now=T + 2)[:2]
    assert mine["ms/step"] == ("20.0", "")
    assert (other["ms/step"][0], other["p95"][0]) == ("", "")
    assert other["samples/s"][0] == "0"


def waited_for(slow: int) -> list[RunEvents]:
    """Twenty seconds in which all steps take 18 ms, and all but one rank wait for 9 of them in backward."""

    def at_work(number: int, t: float) -> list[RunEvents]:
        window, *others = told(number, t)
        waited = (1.0, 0, 0, 1.0, 0) if number == slow else (9.0, 0, 0, 9.0, 0)
        ms, step = 18.0, int(99 + t - T)
        parts = {"backward_ms": 11.0, "forward_ms": 4.0, "data_ms": 1.0, "optimizer_ms": 1.0}
        return [
            msgspec.structs.replace(window, step=step, step_ms_mean=ms, waited_ms=waited, **parts),
            *others,
        ]

    return [each for s in range(20) for n in range(4) for each in at_work(n, T - 19 + s)]


def test_a_rank_that_the_others_wait_for_has_its_price_beside_it() -> None:
    assert [row["costs"][0] for row in rows(*waited_for(2), now=T)] == ["", "", "44 %", ""]


def test_a_rank_that_is_waited_for_stands_out_in_its_own_time_and_its_bar() -> None:
    parts = "parts"
    shown = rows(*waited_for(2), now=T)
    assert [row["ms/step"][0] for row in shown] == ["18.0"] * 4
    assert [row["own ms"] for row in shown] == [("10.0", "")] * 2 + [
        ("18.0", "warn"),
        ("10.0", ""),
    ]
    assert [row["vs med"][0] for row in shown] == ["+0 %", "+0 %", "+80 %", "+0 %"]
    assert [row[parts][0].count("─") for row in shown] == [4, 4, 0, 4]
    assert shown[2][parts][0].count("▓") > shown[0][parts][0].count("▓")
    gone = [scenes.rank(number, RankState.EXITED, T + 1) for number in range(4)]
    end = RunEnded(t=T + 1, run=scenes.RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=31.0)
    ended = rows(*waited_for(2), *gone, end, now=T + 2)
    assert [row["vs med"] for row in ended][1:3] == [("+0 %", "faint"), ("+80 %", "faint")]


def silent(*, seconds: int, **fields: object) -> list[RunEvents]:
    """Seconds in which rank 3 does not say how long it waited and the others do."""
    last = [each for each in waited_for(2) if isinstance(each, Window)][-4:]
    last[3] = msgspec.structs.replace(last[3], waited_ms=None, **fields)
    return [
        msgspec.structs.replace(each, t=T + second)
        for second in range(1, seconds + 1)
        for each in last
    ]


@pytest.mark.parametrize(
    ("fields", "own"), [({"step_ms_mean": 20.0}, "10.0"), ({"steps": 0, "step_ms_mean": None}, "")]
)
def test_own_times_stay_while_a_rank_does_not_say_for_a_moment_how_long_it_waited(
    fields: dict[str, object], own: str
) -> None:
    going = [*waited_for(2), *silent(seconds=1, **fields)]
    shown = rows(*going, now=T + 1)
    assert [row["own ms"][0] for row in shown] == ["10.0", "10.0", "18.0", own]
    assert shown[2]["vs med"][0] == "+80 %"
    end = RunEnded(t=T + 2, run=scenes.RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=31.0)
    assert rows(*going, end, now=T + 99)[2]["vs med"][0] == "+80 %"


def test_own_times_are_unknown_once_a_rank_has_not_said_for_long_how_long_it_waited() -> None:
    later = rows(*waited_for(-1), *silent(seconds=8), now=T + 8)
    assert [row["own ms"][0] for row in later] == [""] * 4


def test_own_time_is_not_made_up_where_ranks_do_not_say_how_long_they_waited() -> None:
    apart = [
        msgspec.structs.replace(each, waited_ms=None, step_ms_mean=28.0, backward_ms=21.0)
        if isinstance(each, Window) and each.rank == 2
        else msgspec.structs.replace(each, waited_ms=None)
        if isinstance(each, Window)
        else each
        for each in waited_for(2)
    ]
    shown = rows(*apart, now=T)
    assert [row["own ms"][0] for row in shown] == [""] * 4
    assert [row["vs med"][0] for row in shown] == ["+0 %", "+0 %", "+56 %", "+0 %"]
    assert not any("─" in row["parts"][0] for row in shown)


def test_the_rank_that_a_hang_waits_for_is_first_and_marked_and_each_says_where_it_is() -> None:
    def called(number: int) -> RankCalled:
        frames = (Place(function="step", file="/u/ddp.py", line=29 if number == 1 else 37),)
        reduce = Collective(
            seq=156, done_seq=155, op="all_reduce", name="default_pg", ranks=(0, 1, 2, 3)
        )
        call = Call(
            rank=number,
            threads=(Thread(main=True, frames=frames),),
            collectives=() if number == 1 else (reduce,),
        )
        host = f"node{number // 2 + 1}"
        return RankCalled(
            t=T + 30, run=scenes.RUN, rank=number, host=host, why="stalled", call=call
        )

    alive = [e for n in range(4) for e in told(n, T + 40) if not isinstance(e, Window)]
    stalled = [scenes.rank(n, RankState.STALLED, T + 31) for n in range(4)]
    found = RunFinding(
        t=T + 32, run=scenes.RUN, check="run.stall", severity=Severity.WARN, rank=1,
        summary="rank 1 on node1 is at ddp.py:29", kind="elsewhere",
    )  # fmt: skip
    events = (*GOING, *alive, *stalled, *map(called, range(4)), found)
    shown = rows(*events, now=T + 40)
    assert [(row["where"], row[""]) for row in shown] == [
        (("all_reduce #156 ddp.py:37", "warn"), ("‖", "warn")),
        (("ddp.py:29", "bad"), ("‖!", "bad")),
        (("all_reduce #156 ddp.py:37", "warn"), ("‖", "warn")),
        (("all_reduce #156 ddp.py:37", "warn"), ("‖", "warn")),
    ]
    timeline = timeline_of(
        [scenes.plan(4), *(scenes.rank(n, RankState.RUNNING) for n in range(4)), *events]
    )
    assert [row.view.rank for row in RankRows(timeline, T + 40, order="worst")] == [1, 0, 2, 3]
    assert health_of(timeline, T + 40).tone is Tone.BAD
    both = msgspec.structs.replace(found, rank=msgspec.UNSET, ranks=(1, 3))
    marks = [row[""][0] for row in rows(*events[:-1], both, now=T + 40)]
    assert marks == ["‖", "‖!", "‖", "‖!"]
    later = [event for n in range(4) for event in told(n, T + 41)]
    moved = rows(*events, *later, now=T + 42)
    assert {row["where"][0] for row in moved} == {"in step 100"}, (
        "they were asked before that step"
    )
    assert {row[""][0] for row in moved} == {"‖"}


def lines_run_for(world: int) -> int:
    """Return how many lines and calls of Python it takes to make the rows of so many ranks; a turn of a loop is one."""
    timeline = timeline_of(
        [scenes.plan(world), *(scenes.window(rank, 99, T) for rank in range(world))]
    )
    run = 0

    def count(_frame: object, _event: str, _argument: object) -> object:
        nonlocal run
        run += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        assert len(list(RankRows(timeline, T, order="worst"))) == world
    finally:
        sys.settrace(before)
    return run


def test_rows_of_many_ranks_cost_what_the_ranks_cost_and_not_their_square() -> None:
    few, many = lines_run_for(128), lines_run_for(512)
    assert 128 < few < many < 4.5 * few
