"""A run: how it goes in one line, the ranks, reduced metrics as curves, findings, the log's tail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll

from distconsole.expression import Condition, parse_condition
from distconsole.formats.figures import number_text
from distconsole.model.findings import Severity
from distconsole.model.run_events import EndState, RunFinding
from distconsole.model.time_text import duration_text, span_text
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, RankOfRun, ranks_of
from distconsole.runs.detectors.stragglers import Straggler
from distconsole.runs.health import Tone, health_of
from distconsole.runs.present import Sight, age_text, sights_of, slow_ranks, standing_ranks
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline
from distconsole.tui.later import RunLine
from distconsole.tui.prompt.keys import SORTS
from distconsole.tui.tasks import RequestTask
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.check import SEVERITY_MARKS
from distconsole.tui.view_models.heat import PACE, heat_of
from distconsole.tui.views.ranks import (
    GPU_TITLES,
    RANK_COLUMNS,
    START_TITLE,
    STEP_TITLES,
    RankRow,
    rank_rows,
    starting,
)
from distconsole.tui.views.run_curves import plots_of
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Words
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.plot import PlotData, Plots

MARKS = {
    Tone.GOOD: ("●", "✓", "good"),
    Tone.NOTE: ("…", "…", "note"),
    Tone.WARN: ("!", "■", "warn"),
    Tone.BAD: ("✗", "✗", "bad"),
}
"""Tone -> the mark of a run that goes on, that of one that has ended, and their style."""
MAX_NAMED = 5
"""Ranks that are listed beside the heat map by their trouble."""
PLOTS = 4
PLOT_CELLS = 36
"""A curve narrower than this says little."""
TALL_LINES = 36
"""A view of this height has room for curves and an error at once."""
PLOT_LINES, LOG_LINES = 6, 2
"""Fewer lines of curves, or of the log with its border, say nothing."""


class RunHeat(HeatMap):
    quantity = "step"
    whole = False
    _shown_task: RequestTask | None = None
    _now = 0.0

    @property
    def about(self) -> str:
        name = printable_name(self.quantity.removeprefix("metric "))
        return f"heat map by {name}, {'the whole run' if self.whole else 'the last minutes'}"

    def choose(self, what: str, known: Sequence[str]) -> str:
        """Show another quantity of ``known`` or another span; return what is wrong with ``what``."""
        if what == "span":
            self.whole = not self.whole
            return ""
        if not known:
            return "nothing is known of the ranks yet"
        now = self.quantity.removeprefix("metric ")
        if what == "next":
            place = known.index(now) if now in known else -1
            what = known[(place + 1) % len(known)]
        if what not in known:
            there = printable_name(", ".join(known))
            return f"nothing called '{what}' is known; there is: {there}"
        self.quantity = what
        return ""

    def draw(self, task: RequestTask, now: float) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds)."""
        if task is not self._shown_task:
            self._shown_task = task
            self.zooms.clear()
        self._now = now
        with task.lock:
            history, key = task.history, self.quantity
            if key not in history.quantities:
                key = f"metric {key}"
            going = task.run.end is None
            sights = sights_of(task.run, now)
            still = standing_ranks(task.run, now, sights)
            slow = slow_ranks(task.run, sights)
            stands = going and Sight.MEASURED not in sights.values()
            heat = heat_of(
                history,
                key,
                self.zoomed or sorted(task.run.ranks),
                whole=self.whole,
                lines=self.rows,
                width=self.columns,
                listed=max(1, self.content_size.height - 4),
                until=now if stands else None,
            )
            worst = () if heat is None else heat.worst
            listed = {each.rank for each in worst if each.quantity in PACE}
            told = troubles_of(task.run, still, [s for s in slow if s.rank not in listed])
        self.show(heat, told, {each.rank for each in slow})

    def zoom(self) -> None:
        if self._shown_task is not None:
            self.draw(self._shown_task, self._now)


class RunView(Vertical):
    DEFAULT_CSS = """
    RunView > #about { color: $text-muted; }
    RunView > #news { height: auto; max-height: 6; padding: 0 1; display: none; }
    RunView > #ranks { max-height: 45%; }
    RunView > #plots { height: 2fr; min-height: 6; max-height: 22; }
    RunView > #traceback { height: 2fr; min-height: 4; border-top: solid $error; padding: 0 1; display: none; }
    RunView > #heat { display: none; }
    RunView #traceback-text { min-height: 100%; }
    RunView > #tail { height: 1fr; min-height: 2; border-top: solid $panel; }
    """

    order = SORTS[0]
    condition: Condition[RankOfRun] | None = None
    _plots_wanted = False
    _has_curves = False

    def compose(self) -> ComposeResult:
        yield Line("no run yet: type 'run SCRIPT', or 'demo'", id="health")
        yield Line(id="about")
        yield Words(id="news")
        yield LineTable(
            RANK_COLUMNS, same=lambda row: row.view.rank, empty="no ranks yet", id="ranks"
        )
        yield Plots(PLOTS, PLOT_CELLS, id="plots")
        with VerticalScroll(id="traceback"):
            yield Words(id="traceback-text")
        yield LogTail(id="tail")
        yield RunHeat(id="heat")

    def turn_heat(self, what: str, known: Sequence[str]) -> str:
        """Turn to the heat map or back, or change what it shows; return what it shows now."""
        page, inside = self.query_one(RunHeat), self.has_focus_within
        if not what:
            page.display = not page.display
        elif said := page.choose(what, known):
            return said
        else:
            page.display = True
        for part in ("#ranks", "#plots", "#tail", "#traceback"):
            self.query_one(part).display = not page.display
        if inside:
            shown = page if page.display else self.query_one("#ranks")
            self.app.call_after_refresh(shown.focus)
        return page.about if page.display else "the ranks"

    @property
    def shows_heat(self) -> bool:
        return self.query_one(RunHeat).display

    def rank_under_cursor(self) -> str:
        page = self.query_one(RunHeat)
        row: RankRow | None = self.query_one("#ranks", LineTable).row_under_cursor()
        rank = page.rank if page.display else row.view.rank if row is not None else None
        return "" if rank is None else str(rank)

    def sort(self, order: str) -> str:
        """Order the ranks by ``order``, by the next one if empty; return what it is now."""
        self.order = order or SORTS[(SORTS.index(self.order) + 1) % len(SORTS)]
        self.query_one("#ranks", LineTable).to_top()
        return self.order

    def filter(self, text: str) -> None:
        """Show only ranks that match ``text``; all if it is empty; raises ``UsageError`` if it means nothing."""
        self.condition = parse_condition(text, RANK_FIELDS) if text else None
        self.query_one("#ranks", LineTable).to_top()

    def choose_plots(self, names: Sequence[str]) -> None:
        """Show the curves whose titles begin with one of ``names`` first, or others; without names swap curves and error."""
        if names:
            self.query_one(Plots).choose(names)
        self._plots_wanted = bool(names) or not self._plots_wanted

    @on(LineTable.SortAsked)
    def sort_rows(self, event: LineTable.SortAsked) -> None:
        self.post_message(RunLine(f"sort {event.order}"))

    def draw(self, task: RequestTask, now: float) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds)."""
        heat = self.query_one(RunHeat)
        # The heat map stands in place of the ranks; how many match a filter is said there, too.
        listed = not heat.display or self.condition is not None
        with task.lock:
            timeline = task.run
            health = _health(task, now)
            ranks = rank_rows(timeline, self.order, now) if listed else []
            early = starting(timeline)
            about = _why_not(task) or _about(timeline, now)
            shown, filtered = _match_ranks(timeline, ranks, self.condition)
            plots = plots_of(task, now, self.query_one(Plots))
            news, traceback = _news(timeline, now), _traceback(timeline)
            tail = list(timeline.logs)
            progress = list(timeline.progress.values())
        self.query_one("#health", Line).show(health)
        self.query_one("#about", Line).show(filtered + about)
        words = self.query_one("#news", Words)
        words.show(news)
        words.display = bool(news) and (not heat.display or self.size.height >= TALL_LINES)
        if heat.display:
            heat.draw(task, now)
            return
        self._draw_ranks(shown, early=early)
        self._draw_middle(plots, traceback)
        self.query_one("#tail", LogTail).show_last([*tail, *progress], len(ranks))

    def _draw_ranks(self, ranks: list[RankRow], *, early: bool) -> None:
        table: LineTable[RankRow] = self.query_one("#ranks", LineTable)
        gpus = any(row.view.gpu is not None for row in ranks)
        calm = all(row.view.alive and not row.lost for row in ranks)
        hidden = (*STEP_TITLES, *(("state",) if calm else ()))
        table.leave_out((*(() if gpus else GPU_TITLES), *(hidden if early else (START_TITLE,))))
        table.filtered = self.condition is not None
        table.sorted_by = "" if self.order == "rank" else self.order
        table.show(ranks)

    def _draw_middle(self, plots: list[PlotData], traceback: str) -> None:
        """Show the curves, or the error where there is one; both where both fit."""
        tall = self.size.height >= TALL_LINES
        error = self.query_one("#traceback")
        error.display = bool(traceback) and (tall or not self._plots_wanted)
        self._has_curves = bool(plots) and (tall or not traceback or self._plots_wanted)
        if not self._has_curves:
            self.query_one("#plots").display = False
        # Where the ranks end is known when all this is laid out.
        self.call_after_refresh(self._fit)
        text = self.query_one("#traceback-text", Words)
        if error.display and str(text.content) != traceback:
            text.show(Text(traceback))
            error.anchor()  # what the log leaves of the room is known only later
        self.query_one(Plots).show(plots)

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit)

    def _fit(self) -> None:
        """Leave out what there is no room for below the ranks: the log first, then the curves."""
        if self.shows_heat:
            return
        ranks = self.query_one("#ranks")
        used = ranks.region.bottom - self.region.y if ranks.region.height else 0
        room = self.size.height - used
        curves = self._has_curves and room >= PLOT_LINES
        middle = curves or self.query_one("#traceback").display
        self.query_one("#plots").display = curves
        self.query_one("#tail").display = room >= LOG_LINES + (PLOT_LINES if middle else 0)


def troubles_of(
    run: RunTimeline, still: Mapping[RankView, float], slow: Sequence[Straggler]
) -> list[tuple[str, str]]:
    """Return mark and words of the ranks that stand still, with seconds, and of those that are slow."""
    first = islice(still.items(), MAX_NAMED)
    told = [("‖", f"{view.rank} {view.host} no step {span_text(age)}") for view, age in first]
    if len(still) > MAX_NAMED:
        told.append(("‖", f"{len(still) - MAX_NAMED:,} more make no step"))
    slowest = slow[:MAX_NAMED]
    return told + [("▲", f"{s.rank} {run.ranks[s.rank].host} slow {s.part}") for s in slowest]


def _match_ranks(
    timeline: RunTimeline, ranks: list[RankRow], condition: Condition[RankOfRun] | None
) -> tuple[list[RankRow], str]:
    """Return the ranks that match, and what is said of the others."""
    if condition is None:
        return ranks, ""
    wanted = {row.view.rank for row in condition.matching(ranks_of(timeline))}
    shown = [row for row in ranks if row.view.rank in wanted]
    return shown, f"filter {condition.text}: {len(shown)} of {len(ranks)} ranks  "


def _health(task: RequestTask, now: float) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    timeline = task.run
    if task.error is not None and timeline.end is None:
        return text.append(f"✗ {task.error.message}", style="bad")
    if timeline.plan is None and not timeline.ranks:
        return text.append("nothing ran" if task.done else "… preparing", style="note")
    health = health_of(timeline, now)
    going, ended, style = MARKS[health.tone]
    mark = going if timeline.end is None else ended
    return text.append(f"{mark} {health.line}", style=style)


def _why_not(task: RequestTask) -> str:
    told = task.error is not None and task.error.hint and task.run.end is None
    return f"hint: {task.error.hint}" if task.error is not None and told else ""


def _about(timeline: RunTimeline, now: float) -> str:
    """Name, age, what the ranks are doing, where; the least needed last."""
    plan = timeline.plan
    if plan is None:
        return ""
    end = timeline.end
    seconds = end.seconds if end is not None else max(0.0, now - (timeline.started or now))
    parts = [timeline.name, duration_text(seconds)]
    states = Counter(view.state.value for view in timeline.ranks.values())
    if len(states) > 1:
        parts.append(", ".join(f"{count} {state}" for state, count in states.most_common()))
    hosts = [host.host for host in plan.hosts]
    parts.append(", ".join(hosts) if len(hosts) <= 3 else f"{len(hosts)} hosts")
    return "  ".join([*parts, plan.launcher, PurePosixPath(plan.script).name])


def _news(timeline: RunTimeline, now: float) -> Text:
    """What should be known now: findings, the worst and newest last; when it went well, the results."""
    text = Text()
    end = timeline.end
    if end is not None and end.state is EndState.SUCCEEDED and timeline.metric_last:
        text.append("results  ", style="strong")
        text.append(_results(timeline) + "\n")
    shown = [f for f in timeline.findings if f.severity in (Severity.WARN, Severity.FAIL)]
    for finding in sorted(shown[-20:], key=lambda finding: -finding.severity.order)[:3]:
        # What was found may have passed: while the run goes on, its age is said.
        _add_finding(text, finding, age_text(finding.t, now) if end is None else "")
    text.rstrip()
    return text


def _add_finding(text: Text, finding: RunFinding, age: str) -> None:
    mark, style = SEVERITY_MARKS[finding.severity]
    text.append(f"{mark} ", style=style)
    text.append(finding.summary)
    text.append(f",{age}" if age else "", style="note")
    if finding.hint:
        text.append(f"\n  hint: {finding.hint}", style="note")
    text.append("\n")


def _results(timeline: RunTimeline) -> str:
    names = sorted(
        timeline.metric_last, key=lambda name: ("acc" not in name, name != "loss", name)
    )
    parts = [f"{name} {timeline.metric_last[name].value:.4g}" for name in names[:6]]
    steps = timeline.steps
    if steps is not None:
        parts.append(f"{steps + 1:,} steps")
    highest = max(timeline.throughput.values, default=None)
    if highest is not None:
        parts.append(f"up to {number_text(highest)} samples/s")
    return "  ".join(parts)


def _traceback(timeline: RunTimeline) -> str:
    found = (f.seen for f in timeline.findings if f.check == "run.first_failure" and f.seen)
    return next(found, "").rstrip()
