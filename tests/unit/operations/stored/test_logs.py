"""``logs``: what fits, what is fold_lines, where bars stood at last."""

from __future__ import annotations

import io

from distconsole.cli.streams import Streams
from distconsole.model import requests as ask
from distconsole.model.run_events import LogLine, NodeSample, RunEvents
from distconsole.operations.stored.logs import Passed, end_transient, fold_lines, select_lines
from distconsole.runs.logs.filter import parse_filter
from distconsole.text.progress import SAID_SECONDS, Bars, alike, bar_text
from distconsole.text.show import show_for


def line(rank: int, text: str, t: float = 0.0, *, transient: bool = False) -> LogLine:
    return LogLine(
        t=t, run="r", host=f"n{rank // 4}", stream="out", line=text, rank=rank, transient=transient
    )


def sample(t: float) -> NodeSample:
    unknown = dict.fromkeys(("cpu", "mem_used", "mem_total", "net_rx_s", "net_tx_s"))
    return NodeSample(t=t, run="r", host="n0", **unknown)


def printed(*events: RunEvents) -> str:
    out = io.StringIO()
    show = show_for(ask.Logs(run="r"), Streams(out, io.StringIO()))
    for event in events:
        show.event(event)
    show.finish()
    return out.getvalue()


def test_a_folded_line_says_which_ranks_and_waits_no_longer_than_it_must() -> None:
    events = [line(0, "a"), line(1, "a", 0.5), line(0, "b", 0.6), sample(9.0), line(0, "c", 9.1)]
    given = fold_lines(select_lines(iter(events), parse_filter("", 0.0)))
    taken = [next(given), next(given)]
    assert printed(*taken) == "[0-1] a\n[0 n0] b\n"
    assert printed(*given) == "[0 n0] c\n"


def test_what_a_filter_leaves_out_is_not_folded_in() -> None:
    events = [line(rank, text) for rank in range(6) for text in ("a", "b")]
    told = fold_lines(select_lines(iter(events), parse_filter("1-2,5 /a/", 0.0)))
    assert printed(*told) == "[1-2,5] a\n"


def test_of_a_bar_that_never_ended_the_last_state_is_a_line() -> None:
    events = [
        line(0, "10%", transient=True),
        line(1, "20%", transient=True),
        line(0, "done"),
        line(1, "30%", transient=True),
    ]
    told = [one for one in end_transient(iter(events)) if not isinstance(one, Passed)]
    assert printed(*told) == "[0 n0] done\n[1 n0] 30%\n"


def test_colours_are_for_terminals_alone() -> None:
    red = LogLine(t=0.0, run="r", host="n", stream="out", line="x", styled="\x1b[31mx\x1b[0m")
    assert printed(red) == "[n] x\n"


def test_bars_that_look_alike_are_one_which_is_the_least_far() -> None:
    lines = [
        line(r, f" {40 + r}%|{'#' * r}  | {r}/9 [00:0{r}<?]", transient=True) for r in (2, 0, 1)
    ]
    (bar,) = alike(lines, fold=True)
    assert bar_text(bar) == "[0-2] 40-42% 40%|  | 0/9 [00:00<?]"
    assert len(alike(lines, fold=False)) == 3


def test_in_a_pipe_bars_are_said_now_and_then_and_only_where_they_went_on() -> None:
    err = io.StringIO()
    streams = Streams(io.StringIO(), err)
    now = 0.0
    bars = Bars(streams, clock=lambda: now)
    for step in range(1000):
        now = step * SAID_SECONDS * 2.5 / 1000
        bars.show(line(step % 2, f"{step // 10}%", transient=True))
    bars.end(line(0, "99%"))
    streams.close()
    assert err.getvalue() == "[0-1] 39-40% 39%\n[0-1] 79-80% 79%\n"
