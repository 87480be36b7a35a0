"""The table of ranks: its columns, its marks and its orders."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple

from rich.text import Text

from distconsole.formats.figures import number_text
from distconsole.model.run_events import RankState
from distconsole.model.time_text import span_text
from distconsole.runs.detectors.stragglers import DATA, STEP
from distconsole.runs.pace import is_fresh
from distconsole.runs.present import Sight, rate_of, sights_of, slow_ranks, standing_ranks
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline
from distconsole.text.lists import share_text
from distconsole.text.tables import Column
from distconsole.tui.widgets.bars import PHASES, level_bar, parts_bar, phases_bar

STATE_STYLES = {
    RankState.STARTING: "note",
    RankState.RUNNING: "good",
    RankState.EXITED: "faint",
    RankState.FAILED: "bad",
    RankState.KILLED: "faint",
    RankState.STALLED: "warn",
}

TROUBLES = {RankState.FAILED: 1, RankState.KILLED: 2, RankState.STALLED: 3}
"""States that are troubles by themselves, and how early they should be read."""

MARKS = (
    *(("✗1", "bad"), ("✗", "bad"), ("■", "faint"), ("‖", "warn"), ("?", "warn"), ("▲", "warn")),
    ("", ""),
)
"""By trouble: the shape that stands before a rank, and its meaning."""

PARTS_WIDTH, START_WIDTH = 17, 16
START_TITLE = "start: ░python▒torch▓group█first step"

PHASE_WORDS = {phase.name: phase.reached for phase in PHASES}


class RankRow(NamedTuple):
    """One rank as the table shows it.

    ``slow`` is the part of its steps in which it is slow; ``lost`` what its host is where nothing is known of it,
    ``lost`` or, with a connection, ``no word``. ``elapsed`` counts seconds since its process was started, None where
    it was not; ``longest`` is the most that any rank has taken to start.
    """

    view: RankView
    first: bool = False
    slow: str = ""
    sight: Sight = Sight.MEASURED
    lost: str = ""
    still_seconds: float | None = None
    gpu_known: bool = True
    elapsed: float | None = None
    longest: float = 0.0
    lost_seconds: float | None = None

    @property
    def trouble(self) -> int:
        """How early it should be read: 0 for the one that failed first, up to 6 for a healthy one."""
        if self.first:
            return 0
        if self.view.state in TROUBLES:
            return TROUBLES[self.view.state]
        if self.lost and self.view.alive:
            return 4
        if self.still_seconds is not None:
            return 3
        return 5 if self.slow else 6


def rank_rows(timeline: RunTimeline, order: str, now: float) -> list[RankRow]:
    """Return the ranks of ``timeline`` at ``now`` (UNIX seconds) in ``order``, one of ``keys.SORTS``."""
    first = first_failure_rank(timeline)
    sights = sights_of(timeline, now)
    slow = {each.rank: each.part for each in slow_ranks(timeline, sights)}
    still = {view.rank: age for view, age in standing_ranks(timeline, now, sights).items()}
    views = timeline.ranks.items() if starting(timeline) else ()
    starts = {n: _start_seconds(view, now) for n, view in views if view.started_at}
    longest = max(starts.values(), default=0.0)
    rows = []
    for number, view in sorted(timeline.ranks.items(), key=itemgetter(0)):
        sight = sights[number]
        lost, lost_at = _lost(timeline, view) if sight is Sight.UNSEEN else ("", None)
        rows.append(
            RankRow(
                view,
                number == first,
                slow.get(number, ""),
                sight,
                lost,
                still.get(number),
                _gpu_known(view, sight, now),
                starts.get(number),
                longest,
                None if lost_at is None else now - lost_at,
            )
        )
    return sorted(rows, key=SORT_KEYS[order]) if order in SORT_KEYS else rows


def _lost(timeline: RunTimeline, view: RankView) -> tuple[str, float | None]:
    """Return what the host of a rank of which nothing is known is, and since when."""
    link, node = timeline.links.get(view.host), timeline.nodes.get(view.host)
    if link is not None and not link.connected:
        return "lost", link.t
    # A host that never tells of itself may be well: nothing is said then.
    return ("no word", node.t) if node is not None else ("", None)


def _gpu_known(view: RankView, sight: Sight, now: float) -> bool:
    return sight in (Sight.MEASURED, Sight.IDLE) and is_fresh(view.gpu_at, now)


def starting(timeline: RunTimeline) -> bool:
    """Whether ranks are on the way to their first step, and none of this attempt has done one."""
    return timeline.end is None and all(v.step is None for v in timeline.ranks.values())


def _start_seconds(view: RankView, now: float) -> float:
    return view.phases.get("first_step", max(0.0, now - (view.started_at or now)))


def first_failure_rank(timeline: RunTimeline) -> int | None:
    found = (f for f in timeline.findings if f.check == "run.first_failure")
    rank = getattr(next(found, None), "rank", None)
    return rank if isinstance(rank, int) else None


def _data_share(view: RankView) -> float:
    return (view.data_ms or 0.0) / view.step_ms_mean if view.step_ms_mean else 0.0


SORT_KEYS: dict[str, Callable[[RankRow], tuple[float, ...]]] = {
    "worst": lambda row: (row.trouble, 0 if row.elapsed is None else len(row.view.phases)),
    "ms": lambda row: (-(row.view.step_ms_mean or 0.0),),
    "data": lambda row: (-_data_share(row.view),),
    "step": lambda row: (-1 if row.view.step is None else row.view.step,),
}
"""What rows are sorted by; in any other order they stay in that of ranks, in which equal ones always are."""


def mark_of(row: RankRow) -> tuple[str, str]:
    if row.trouble == len(MARKS) - 1 and row.view.state is RankState.EXITED:
        return ("", "") if row.view.exit_code else ("✓", "faint")
    return MARKS[row.trouble]


def _state(row: RankRow) -> Text:
    view = row.view
    if row.trouble == 4:
        since = f" {span_text(row.lost_seconds)}" if row.lost_seconds is not None else ""
        return Text(f"{row.lost}{since}", style="warn")
    words = view.state.value
    if row.still_seconds is not None:
        style = "bad" if view.state is RankState.STALLED else "note"
        return Text(f"no step {span_text(row.still_seconds)}", style=style)
    if view.state in (RankState.STARTING, RankState.RUNNING) and view.step is None and view.phase:
        words = PHASE_WORDS.get(view.phase, view.phase)
    elif row.first:
        words = "failed first" if view.exit_code is None else f"failed first ({view.exit_code})"
    elif view.exit_code:
        words = f"{words} ({view.exit_code})"
    elif view.state is RankState.STARTING and view.started_at is None:
        words = "not started"
    elif row.slow:
        words = "slow" if row.slow == STEP else f"slow {row.slow}"
    return Text(words, style="warn" if row.slow else STATE_STYLES[view.state])


def _name_text(row: RankRow, name: str | int | None) -> Text:
    text = "" if name is None else str(name)
    return Text(text, style="" if row.view.alive and not row.lost else "faint")


def _step_text(row: RankRow, text: str, style: str = "") -> Text:
    """A figure of its steps; faint where it is not of now."""
    return Text(text, style=style if row.sight is Sight.MEASURED else "faint")


def _gpu_text(row: RankRow, text: str) -> Text:
    return Text(text, style="" if row.gpu_known else "faint")


def _use(row: RankRow) -> Text:
    bar = level_bar(row.view.gpu_util, 8)
    return bar if row.gpu_known else Text(bar.plain, style="faint")


def _parts(row: RankRow) -> Text:
    view = row.view
    parts = (view.data_ms, view.forward_ms, view.backward_ms, view.optimizer_ms)
    bar = parts_bar(parts, view.step_ms_mean, PARTS_WIDTH)
    return bar if row.sight is Sight.MEASURED else Text(bar.plain, style="faint")


def _start_up(row: RankRow) -> Text:
    return phases_bar(row.view.phases, row.elapsed, row.longest, START_WIDTH)


def _part_ms(row: RankRow, value: float | None, part: str) -> Text:
    return _step_text(row, number_text(value), "warn" if row.slow == part else "")


def _rate(row: RankRow) -> Text:
    rate = rate_of(row.view, row.sight)
    if rate is None:
        unknown = row.sight is Sight.UNSEEN and row.view.windows
        return Text("–", style="faint") if unknown else Text("")
    return _step_text(row, number_text(rate) if rate else "0")


def _loss(row: RankRow) -> Text:
    loss = row.view.metrics.get("loss")
    return _step_text(row, "" if loss is None else f"{loss:.4g}")


RANK_COLUMNS: list[Column[RankRow]] = [
    Column("", 2, lambda row: Text(*mark_of(row)), sort="worst"),
    Column("rank", 5, lambda row: _name_text(row, row.view.rank), right=True, sort="rank"),
    Column("host", 12, lambda row: _name_text(row, row.view.host)),
    Column("gpu", 3, lambda row: _name_text(row, row.view.gpu), 4, True),
    Column("use", 8, _use, need=8),
    Column("util%", 5, lambda row: _gpu_text(row, number_text(row.view.gpu_util)), 3, True),
    Column(
        "gpu memory",
        12,
        lambda row: _gpu_text(row, share_text(row.view.gpu_mem_used, row.view.gpu_mem_total)),
        6,
        True,
    ),
    Column("temp", 5, lambda row: _gpu_text(row, number_text(row.view.temp_c)), 9, True),
    Column("power", 6, lambda row: _gpu_text(row, number_text(row.view.power_w, "W")), 9, True),
    Column("step", 7, lambda row: _name_text(row, row.view.step), 0, True, "step"),
    Column("ms/step", 8, lambda row: _part_ms(row, row.view.step_ms_mean, STEP), 0, True, "ms"),
    Column("p95", 6, lambda row: _step_text(row, number_text(row.view.step_ms_p95)), 5, True),
    Column("░data▒fwd▓bwd█opt", PARTS_WIDTH, _parts, need=4),
    Column(START_TITLE, len(START_TITLE), _start_up, need=1),
    Column("data ms", 8, lambda row: _part_ms(row, row.view.data_ms, DATA), 7, True, "data"),
    Column("samples/s", 9, _rate, 2, True),
    Column("loss", 8, _loss, 2, True),
    Column("state", 16, _state),
]
STEP_TITLES = ("step", "ms/step", "p95", "░data▒fwd▓bwd█opt", "data ms", "samples/s", "loss")
"""Columns that say nothing before the first step."""
GPU_TITLES = ("gpu", "use", "util%", "gpu memory", "temp", "power")
"""Columns that only a run with GPUs has."""
