"""The table of ranks: its columns and its marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.text import Text

from distconsole.formats.figures import figure_text, number_text
from distconsole.model.run_events import GpuSample, RankState
from distconsole.model.time_text import ms_text, span_text
from distconsole.runs.detectors.slowness import DATA, STEP
from distconsole.runs.figures import GPU
from distconsole.runs.present import Sight, rate_of
from distconsole.runs.rank_view import ENDED_BY_STOP, RankView
from distconsole.runs.timeline import RunTimeline
from distconsole.text.lists import share_text
from distconsole.text.tables import Column
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.rank_rows import LOST, RankRow, RankRows
from distconsole.tui.widgets.bars import (
    HEADROOM,
    PHASES,
    level_bar,
    parts_bar,
    phases_bar,
    spark_text,
)

STATE_STYLES = {
    RankState.STARTING: "note",
    RankState.RUNNING: "good",
    RankState.EXITED: "faint",
    RankState.FAILED: "bad",
    RankState.KILLED: "faint",
    RankState.LOST: "faint",
    RankState.STALLED: "warn",
}

MARKS = (
    *(("✗1", "bad"), ("✗", "bad"), ("■", "faint"), ("‖!", "bad"), ("‖", "warn"), ("?", "warn")),
    *(("▲", "warn"), ("", "")),
)
"""By trouble: a rank's sign, and its meaning."""

PARTS_WIDTH, START_WIDTH, START_WORDS = 8, 16, 30
PARTS_TITLE = "parts"
OWN_TITLE = "own ms"
"""A step without its waits; a column if these are known."""
RECENT_CELLS, LOSS_CELLS = 9, 8
WAIT_MS, WAIT_SHARE = 1.0, 0.1
"""Least milliseconds, and share of a step, of a wait that the state shows."""
COSTS_TITLE = "costs"
"""How much shorter each step would be without the rank; a column if ranks wait for one."""
START_TITLE = "start: ░ python ▒ torch ▓ group █ first step"

PHASE_WORDS = {phase.name: phase.reached for phase in PHASES}


def mark_of(row: RankRow) -> tuple[str, str]:
    if row.trouble == len(MARKS) - 1 and row.view.state is RankState.EXITED:
        return ("✗", "bad") if row.view.exit_code else ("✓", "faint")
    return MARKS[row.trouble]


def _state(row: RankRow) -> Text:
    view = row.view
    if row.trouble == LOST:
        since = f" {span_text(row.lost_seconds)}" if row.lost_seconds is not None else ""
        return Text(f"{row.lost}{since}", style="warn")
    words, long_wait = view.state.value, max(WAIT_MS, WAIT_SHARE * (view.step_ms_mean or 0.0))
    if row.still_seconds is not None:
        style = "bad" if view.state is RankState.STALLED else "note"
        return Text(f"no step {span_text(row.still_seconds)}", style=style)
    if view.state in (RankState.STARTING, RankState.RUNNING) and view.step is None and view.phase:
        words = PHASE_WORDS.get(view.phase, view.phase)
    elif row.first:
        words = "failed first" if view.exit_code is None else f"failed first ({view.exit_code})"
    elif view.stopped:
        words = ENDED_BY_STOP
    elif view.exit_code:
        words = f"{words} ({view.exit_code})"
    elif view.state is RankState.STARTING and view.started_at is None:
        words = "not started"
    elif row.slow:
        part = "slow" if row.slow == STEP else f"slow {row.slow}"
        words = f"{part} +{ms_text(row.excess_ms)}"
    elif row.sight is Sight.MEASURED and (row.wait_ms or 0.0) >= long_wait:
        for_whom = "" if row.slowest is None else f" for rank {row.slowest}"
        return Text(f"waits {ms_text(row.wait_ms or 0.0)}{for_whom}", style="note")
    return Text(words, style="warn" if row.slow else STATE_STYLES[view.state])


def _state_in(row: RankRow, cells: int) -> Text:
    """Return the state, without the awaited rank if its number has no room."""
    text = _state(row)
    return text if len(text) <= cells else Text(text.plain.partition(" for rank ")[0], text.style)


def _name_text(row: RankRow, name: str | int | None) -> Text:
    text = "" if name is None else str(name)
    return Text(text, style="" if row.view.alive and not row.lost else "faint")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _step_text(row: RankRow, text: str, style: str = "") -> Text:
    """A figure of its steps; faint unless measured now."""
    return Text(text, style=style if row.sight is Sight.MEASURED else "faint")


def _gpu_text(row: RankRow, text: str) -> Text:
    return Text(text, style="" if row.gpu_known else "faint")


def _gpu_column(name: str, width: int, need: int) -> Column[RankRow]:
    figure = GPU[name]
    return Column(
        figure.heading,
        width,
        lambda row: _gpu_text(row, figure_text(figure, row.view.sample)),
        need,
        True,
    )


def _memory_text(gpu: GpuSample | None) -> str:
    return "" if gpu is None else share_text(gpu.mem_used, gpu.mem_total)


def _use(row: RankRow) -> Text:
    bar = level_bar(row.view.gpu_util, 8)
    return bar if row.gpu_known else Text(bar.plain, style="faint")


def _parts(row: RankRow, cells: int = PARTS_WIDTH) -> Text:
    view = row.view
    waits = None
    if row.own_ms is not None:  # what is not said is taken from backward
        waits = view.parts_waited_ms or (0.0, 0.0, row.wait_ms or 0.0, 0.0)
    bar = parts_bar(view.parts_ms, view.step_ms_mean, cells, row.longest_ms, waits, row.wait_ms)
    return bar if row.sight is Sight.MEASURED else Text(bar.plain, style="faint")


def _parts_heading(rows: Sequence[RankRow], cells: int) -> str:
    """Return the time of a full bar; the border explains the shades."""
    scale = f"{PARTS_TITLE}, 0 to {ms_text(rows[0].longest_ms)}" if rows else PARTS_TITLE
    return scale if len(scale) <= cells else PARTS_TITLE


def _versus(row: RankRow) -> Text:
    own, usual = row.own_ms, row.usual_own_ms
    if own is None:
        own, usual = row.view.step_ms_mean, row.median_ms
    share = own / usual - 1 if own is not None and usual else None
    if share is None:
        return Text("")
    text = f"{round(100 * share):+} %" if abs(share) < 10 else f"x{share + 1:.0f}"
    stands_out = row.slow if row.own_ms is not None else row.slow == STEP
    return _step_text(row, text, "warn" if stands_out else "")


def _own_ms(row: RankRow) -> Text:
    return _step_text(row, number_text(row.own_ms), "warn" if row.slow else "")


def _recent(row: RankRow) -> Text:
    values = () if row.recent is None else row.recent(row.view.rank)
    highest = HEADROOM * row.longest_ms or None  # one scale for all ranks, as their bars have
    return _step_text(row, spark_text(values, RECENT_CELLS, highest) if values else "", "curve")


def _start_up(row: RankRow, cells: int = 0) -> Text:
    width = max(START_WIDTH, cells - START_WORDS)
    return phases_bar(row.view.phases, row.elapsed, row.longest, width)


def _part_ms(row: RankRow, value: float | None, part: str) -> Text:
    return _step_text(row, number_text(value), "warn" if row.slow == part else "")


def _rate(row: RankRow) -> Text:
    rate = rate_of(row.view, row.sight)
    if rate is None:
        unknown = row.sight is Sight.UNSEEN and row.view.windows
        return Text("–", style="faint") if unknown else Text("")
    return _step_text(row, number_text(rate) if rate else "0")


def _where(row: RankRow) -> Text:
    """Return the call that a stalled rank waits in or runs; its step if the call is unknown."""
    if row.still_seconds is None or row.view.step is None:
        return Text("")
    asked = "" if row.where is None else row.where(row.view)
    where = printable_name(asked) or f"in step {row.view.step + 1:,}"
    return Text(where, style="bad" if row.blamed else "warn")


def _loss(row: RankRow) -> Text:
    loss = row.view.metrics.get("loss")
    text = "" if loss is None else f"{loss:.4g}"
    return _step_text(row, text if len(text) <= LOSS_CELLS else f"{loss:.2g}")


RANK_COLUMNS: list[Column[RankRow]] = [
    Column("", 2, lambda row: Text(*mark_of(row)), sort="worst"),
    Column("rank", 5, lambda row: _name_text(row, row.view.rank), right=True, sort="rank"),
    Column("host", 10, lambda row: _name_text(row, row.view.host), middle=True),
    Column("gpu", 3, lambda row: _name_text(row, row.view.gpu), 7, True),
    Column("use", 8, _use, need=8),
    _gpu_column("util", 5, 3),
    Column("gpu memory", 12, lambda row: _gpu_text(row, _memory_text(row.view.sample)), 6, True),
    _gpu_column("temp", 5, 9),
    _gpu_column("power", 6, 9),
    Column("step", 7, lambda row: _name_text(row, _count(row.view.step)), 0, True, "step"),
    Column("ms/step", 8, lambda row: _part_ms(row, row.view.step_ms_mean, STEP), 0, True, "ms"),
    Column(OWN_TITLE, 6, _own_ms, 1, True, "own"),
    Column("vs med", 6, _versus, 2, True),
    Column("last 60 s", RECENT_CELLS, _recent, 8),
    Column(
        "p95", 6, lambda row: _step_text(row, number_text(row.view.step_ms_p95)), 9, True, "p95"
    ),
    Column(PARTS_TITLE, PARTS_WIDTH, _parts, fill=_parts, heading=_parts_heading),
    Column(START_TITLE, len(START_TITLE), _start_up, need=1, fill=_start_up),
    Column("data ms", 8, lambda row: _part_ms(row, row.view.data_ms, DATA), 8, True, "data"),
    Column("where", 16, _where, 1, wide=28),
    Column(COSTS_TITLE, 6, lambda row: Text(row.costs, style="warn"), 1, True, "costs"),
    Column("samples/s", 9, _rate, 6, True, "samples/s"),
    Column("loss", LOSS_CELLS, _loss, 7, True, "loss"),
    Column("state", 18, _state, wide=24, fill=_state_in),
]
STEP_TITLES = (
    *("step", "ms/step", OWN_TITLE, "vs med", "last 60 s", "p95", PARTS_TITLE),
    *("data ms", "where", "samples/s", "loss"),
)
"""Columns without values before the first step."""
MEASURES: dict[str, Callable[[RankView], float | None]] = {
    "data ms": lambda view: view.data_ms,
    "samples/s": lambda view: view.samples_s,
    "loss": lambda view: view.metrics.get("loss"),
}
"""Columns for figures that some rank has to report."""
GPU_TITLES = ("gpu", "use", "util%", "gpu memory", "temp", "power")
"""Columns of runs with GPUs."""
ORDERS = {column.title: column.sort for column in RANK_COLUMNS if column.sort}
"""Heading -> the order of a click on it."""


def unreported(timeline: RunTimeline) -> list[str]:
    """Return the titles of columns whose figures no rank of a run reports."""
    views = timeline.ranks.values()
    missing = (
        title for title, figure in MEASURES.items() if all(figure(view) is None for view in views)
    )
    return [*missing, *(() if timeline.ranks_have_gpus else GPU_TITLES)]


def ended_ranks(timeline: RunTimeline, now: float) -> list[RankRow]:
    """Return the ranks whose processes have ended, the first to end first."""
    rows = [row for row in RankRows(timeline, now) if row.view.ended_at is not None]
    first = min((row.view.ended_at or 0.0 for row in rows), default=0.0)
    rows.sort(key=lambda row: (row.view.ended_at or 0.0, row.trouble))
    return [row._replace(ended_seconds=(row.view.ended_at or 0.0) - first) for row in rows]


ENDED_COLUMNS: list[Column[RankRow]] = [
    Column("", 2, lambda row: Text(*mark_of(row))),
    Column("rank", 5, lambda row: f"{row.view.rank}", right=True),
    Column("host", 12, lambda row: row.view.host, middle=True),
    Column("after", 8, lambda row: f"+{row.ended_seconds:.1f} s", right=True),
    Column("step", 7, lambda row: _count(row.view.step), 1, True),
    Column("how", 14, _state, wide=24),
]
