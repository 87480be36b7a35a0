"""How a run went over time, in bounded size."""

import base64
import math
import re
import struct
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from distconsole.formats.figures import nice_ticks, short_time
from distconsole.formats.page import page_of
from distconsole.formats.page.heat import UNKNOWN, heat_map, png
from distconsole.formats.page.plots import PageTick, merge_points, plot
from distconsole.model.run_events import LogLine, Window
from distconsole.runs.rank_history import STEP, RankHistory
from distconsole.runs.report_data import (
    FIRST_LINES,
    HEAT_CELLS,
    LAST_LINES,
    MAX_LINE_CHARS,
    ReportData,
)
from distconsole.runs.series import FARTHEST, Band, Series
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.summary import summarise
from distconsole.tui.view_models.runs import figures_text
from fakes import scenes
from fakes.blank import blank


def stepped(rank: int, t: float, step_ms: float) -> Window:
    return blank(
        Window, t=t, run="r", rank=rank, step=int(t), steps=1, step_ms_mean=step_ms, host="h"
    )


def test_a_heat_map_of_many_ranks_is_bounded() -> None:
    heat = RankHistory(STEP, cells=HEAT_CELLS)
    one = stepped(0, 0.0, 20.0)
    for second in range(0, 600, 30):
        for rank in range(2048):
            heat.apply(replace(one, t=float(second), rank=rank))
    found = heat_map(heat, 0.0)
    assert len(found.ranks) * found.columns <= HEAT_CELLS
    assert found.per_row == 8
    assert len(found.cells) < 2 * HEAT_CELLS * 4 / 3 + 4


def test_a_rank_that_says_nothing_for_a_while_has_no_colour() -> None:
    data = ReportData()
    for second in (0, 1, 5):
        data.apply(stepped(0, float(second), 10.0))
    found = heat_map(data.heat, 0.0)
    cells = struct.unpack("<6H", base64.b64decode(found.cells))
    assert [cell == UNKNOWN for cell in cells] == [False, False, True, True, False, False]
    assert png([[10.0, math.nan]], 5.0, 10.0).startswith(b"\x89PNG")


def test_a_band_has_the_lowest_and_the_highest_of_a_second() -> None:
    band = Band()
    for t, value in ((1.0, 3.0), (1.5, 9.0), (1.9, 6.0), (2.0, 4.0)):
        band.put(t, value)
    band.flush()
    assert band.series.points() == [(1.0, 6.0, 3.0, 9.0), (2.0, 4.0, 4.0, 4.0)]


def test_of_many_lines_the_first_and_the_last_are_kept() -> None:
    data = ReportData()
    for number in range(1000):
        data.apply(scenes.log(1, f"{number} {'x' * 1_000}"))
    (ends,) = data.lines.values()
    assert [line.text.split()[0] for line in ends.first] == [str(n) for n in range(FIRST_LINES)]
    assert ends.last[-1].text.startswith("999 ")
    assert ends.left_out == 1000 - FIRST_LINES - LAST_LINES
    assert len(ends.first[0].text) < MAX_LINE_CHARS + 40


def test_a_curve_that_is_thinned_keeps_its_spikes() -> None:
    points = [(float(x), 1.0, 1.0, 100.0 if x == 777 else 1.0) for x in range(2000)]
    found = merge_points(points, 600)
    assert len(found) <= 600
    assert max(high for _, _, _, high in found) == 100.0
    assert found[-1][0] == 1999.0


@pytest.mark.parametrize(
    ("low", "high"),
    [
        *((0, 1), (-3.2, 4.1), (5, 5), (0, 0), (1e-9, 2e-9), (0, 3e12), (-7, -7)),
        *((5e-324, 5e-324), (0, 1e-320), (-1e100, 1e100)),
    ],
)
def test_ticks_are_few_and_enclose_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high, 4)
    assert 2 <= len(ticks) <= 8
    assert ticks[0] <= low
    assert ticks[-1] >= high


def test_a_curve_of_one_point_and_one_of_none_can_be_drawn() -> None:
    series = Series()
    assert plot("loss", series) is None
    series.put(3, 0.5)
    drawn = plot("loss", series)
    assert drawn.ends == (2.5, 3.5)


@pytest.mark.parametrize(
    ("x", "value"), [(2.0**63, 1.0), (3.0, 1e308), (3.0, -1e308), (3.0, 5e-324), (3.0, -1.0)]
)
def test_a_curve_of_values_that_nobody_measures_can_be_drawn(x: float, value: float) -> None:
    series = Series()
    series.put(x, value)
    drawn = plot("loss", series, zero=True)
    assert (drawn is None) == (abs(value) > FARTHEST)
    assert bool(series.broken) == (drawn is None)


def paused(band: Band) -> Series:
    """A curve with a pause of 20 s between its seconds 9 and 30."""
    for second in (*range(10), *range(30, 40)):
        band.put(100.0 + second, 1900.0 if second < 10 else 60.0)
    band.flush()
    return band.series


def test_a_curve_of_the_page_leaves_a_gap_where_nothing_was_measured() -> None:
    drawn = plot("Throughput", paused(Band()), started=100.0, zero=True)
    assert drawn.line.count("M") == 2
    before, after = drawn.line[1:].split("M")
    ends = [float(part.split()[0]) for part in (before.split("L")[-1], after.split("L")[0])]
    assert [round(end * 39 / 1000) for end in ends] == [9, 30]


def test_an_axis_of_time_ends_where_the_run_does_and_not_at_its_last_value() -> None:
    drawn = plot("Throughput", paused(Band()), started=100.0, until=160.0)
    assert drawn.ends == (0.0, 60.0)


def test_the_heat_map_of_the_page_ends_with_the_run() -> None:
    data = ReportData()
    for event in scenes.training(gpus=False):
        data.apply(event)  # type: ignore[arg-type]
    data.apply(scenes.node("node1", scenes.START + 119))
    data.close()
    drawn = heat_map(data.heat, scenes.START)
    assert (drawn.columns, drawn.moment_seconds) == (120, 1.0)
    assert drawn.x_ticks[-1].text == "2:00"


def test_a_value_far_beyond_the_others_is_cut_off_and_said() -> None:
    series = Series()
    for second in range(100):
        series.put(100.0 + second, 9000.0 if second == 50 else 20.0 + second % 3)
    drawn = plot("Step time", series, started=100.0, unit="ms")
    assert drawn.y_ticks[-1].text == "23"
    assert "up to 9,000 ms" in drawn.note
    assert drawn.beyond == (PageTick(500 / 9.9, "9,000 ms"),)
    highest = min(float(part.split()[1]) for part in drawn.line[1:].split("L"))
    assert highest == 0.0


def test_a_page_shows_who_is_slow_where_all_steps_take_as_long() -> None:
    data = ReportData()
    data.apply(scenes.plan(4))
    for second in range(30):
        for rank in range(4):
            waited = 1.0 if rank == 2 else 9.0
            told = stepped(rank, scenes.START + second, 18.0)
            data.apply(msgspec.structs.replace(told, waited_ms=(waited, 0, 0, waited, 0)))
    data.close()
    page = page_of(data, scenes.START + 40).decode()
    assert re.search(r"Own time, slowest over fastest</\w+>\s*<\w+[^>]*>1.80x", page)
    assert "<h2>Own time by rank and moment</h2>" in page
    assert page.count(">1.80x</td>") == 1
    assert page.count(">1.00x</td>") == 3
    record = RunRecord(run=data.timeline.run, started=scenes.START, hosts=("h",))
    summary = summarise(record, data.timeline)
    assert (summary.step_ms_spread, summary.own_ms_spread) == (1.0, 1.8)
    assert "slowest rank x1.80 of own time" in figures_text(summary)


def test_a_page_of_a_run_without_an_end_does_not_call_old_figures_present() -> None:
    data = ReportData()
    for event in scenes.training():
        data.apply(event)  # type: ignore[arg-type]
    data.close()
    page = page_of(data, scenes.MINUTE_LATER + 3600).decode()
    said = page[page.index("Without an end so far") :][:600]
    assert "ealthy" not in said
    assert "4 ranks, – samples/s, step –, loss 0.103 60 min ago" in said


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65, "1:05"), (7200, "2:00:00")])
def test_a_moment_of_a_run_is_short(seconds: float, text: str) -> None:
    assert short_time(seconds) == text


def test_a_page_is_made_of_whatever_is_known(tmp_path: Path) -> None:
    empty = ReportData()
    empty.close()
    assert b"Without an end so far" in page_of(empty, 1.0)
    lines = ReportData()
    lines.apply(LogLine(t=1.0, run="r", host="h", stream="out", line="\ud800\x00<b>"))
    lines.close()
    page = page_of(lines, 2.0)
    assert "\ufffd&lt;b&gt;".encode() in page


def test_a_page_of_a_huge_run_is_bounded_and_hides_what_is_secret() -> None:
    data = ReportData()
    for event in scenes.failing(64):
        data.apply(event)
    data.apply(scenes.log(2, "password in postgres://me:hunter2@db and " + "y" * 1_000_000))
    data.close()
    page = page_of(data, scenes.MINUTE_LATER + 9)
    assert b"hunter2" not in page
    assert len(page) < 600_000
    assert b'http-equiv="Content-Security-Policy" content="default-src \'none\'' in page


def test_a_page_marks_lines_by_what_they_say_and_has_no_columns_of_gpus_that_are_not_there() -> (
    None
):
    def page(*, gpus: bool) -> str:
        data = ReportData()
        lines = (
            "[W1128 12:00:00 socket.cpp] Warning: no address",
            "from stderr",
            "ValueError: no",
        )
        for event in scenes.training(gpus=gpus):
            data.apply(event)  # type: ignore[arg-type]
        for line in lines:
            data.apply(scenes.log(0, line, stream="err"))
        data.close()
        return page_of(data, scenes.MINUTE_LATER).decode()

    without = page(gpus=False)
    found = re.findall(r'<tr class="(\w+)"><td>[^<]*</td><td>([^<]*)</td>', without)
    classes = {text.partition(" ")[0]: level for level, text in found}
    assert classes == {"epoch": "out", "[W1128": "warn", "from": "out", "ValueError:": "err"}
    assert re.findall('data-column="\\d+">(GPU[^<]*)<', without) == []
    assert re.findall('data-column="\\d+">(GPU[^<]*)<', page(gpus=True)) == [
        "GPU",
        "GPU %",
        "GPU memory",
    ]
    assert without.count('<td class="state">') == 4
