"""A run: its verdict, figures, ranks, curves of metrics reduced over ranks, findings, and the log's tail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll

from distconsole.expression import Condition, parse_condition
from distconsole.model.names import count_text
from distconsole.model.time_text import span_text
from distconsole.runs.conditions.rank_fields import RANK_FIELDS, RankOfRun, ranks_of
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.detectors.stragglers import cost_text
from distconsole.runs.logs.last import LastLine
from distconsole.runs.present import Present, present
from distconsole.runs.rank_history import OWN, STEP
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import LAST_LINES, RunTimeline
from distconsole.tui.prompt.keymap import Keymap
from distconsole.tui.prompt.keys import SORTS
from distconsole.tui.tasks import RequestTask
from distconsole.tui.terminal.sanitize import printable_name
from distconsole.tui.view_models.heat import PACE, heat_of
from distconsole.tui.view_models.hints import console_hint
from distconsole.tui.view_models.rank_rows import RankRow, RankRows, starting
from distconsole.tui.views.ranks import (
    COSTS_TITLE,
    ENDED_COLUMNS,
    ORDERS,
    OWN_TITLE,
    RANK_COLUMNS,
    START_TITLE,
    STEP_TITLES,
    ended_ranks,
    unreported,
)
from distconsole.tui.views.run_words import news_of, plots_of, tiles_of, traceback_of, verdict_of
from distconsole.tui.widgets.bars import parts_legend
from distconsole.tui.widgets.curves import PlotData
from distconsole.tui.widgets.heat_map import HeatMap
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Verdict, Words
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plots import MOST_ROWS, Plots
from distconsole.tui.widgets.tiles import Tiles

TILES, PLOTS = 5, 6
PLOT_CELLS = 36
"""Least cells of a curve."""
NEWS_LINES = 6
VERDICT_EDGE = 4
"""Cells of a verdict's line besides its sentence."""
FEW_RANKS, FEW_ROWS = 20, 12
"""Of more ranks than the first, the second number is listed, beside a heat map of all."""
STRIP_CELLS = 140
"""Least cells of a view with a heat map beside the ranks."""
LEAST_ROWS = {"#plots": 5, "#error": 3, "": 0}
"""Least rows of the parts below the ranks."""
LOG_ROWS, LEAST_RANKS = 3, 4
"""Least rows of log and ranks if either may have more than one."""
TALL = 3
"""Plots between ranks and log may take one in this many lines if the log would leave them empty."""
KEYS_OF_RANKS = ("sort", "filter ", "lines filter {rank}", "heat")
NO_ERROR = "there is no traceback: the plots stay"
LISTED = ("#ranks-row", "#plots", "#error", "#tail-panel")


MAX_NAMED = 5
"""Ranks listed beside the heat map by their trouble."""


class RunHeat(HeatMap):
    quantity = STEP.name
    whole = False
    _is_chosen = False
    """True if the user has chosen the quantity: else it is own time once a rank of the run is slow."""
    _shown_task: RequestTask | None = None
    _now = 0.0

    @property
    def about(self) -> str:
        return f"heat map by {printable_name(self.quantity.removeprefix('metric '))}, {self._span}"

    @property
    def _span(self) -> str:
        return "the whole run" if self.whole else "the last minutes"

    def choose(self, what: str, known: Sequence[str]) -> str:
        """Show another quantity of ``known`` or another span; return the error in ``what``."""
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
        self.quantity, self._is_chosen = what, True
        return ""

    def draw(
        self, task: RequestTask, now: float, also: str = "", figures: Present | None = None
    ) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds), with ``also`` in the panel's heading."""
        if task is not self._shown_task:
            self._shown_task = task
            self.zooms = ()
            if not self._is_chosen:
                self.quantity = STEP.name
        self._now = now
        with task.lock:
            figures = figures or present(task.run, now)
            slow, history = figures.slow, task.history
            if not self._is_chosen:
                if OWN.name not in history.quantities:
                    self.quantity = STEP.name
                elif slow:  # no rank is slow in the whole step
                    self.quantity = OWN.name
            key = self.quantity
            if key not in history.quantities:
                key = f"metric {key}"
            going = task.run.end is None
            stands = going and not figures.working
            heat = heat_of(
                history,
                key,
                self.zoomed or sorted(task.run.ranks),
                whole=self.whole,
                lines=self.rows,
                width=self.columns,
                listed=self.lines,
                until=now if stands else None,
            )
            worst = () if heat is None else heat.worst
            listed = {each.rank for each in worst if each.quantity in PACE}
            told = troubles_of(
                task.run, figures.standing, [s for s in slow if s.rank not in listed]
            )
            prices = {each.rank: cost_text(each) if each.cost_ms else "" for each in slow}
        self.show(heat, told, prices)
        title, parts = self.heading()
        if isinstance(self.parent, Panel):
            self.parent.entitle(
                title or self.about, ", ".join(filter(None, [*parts, self._span, also]))
            )

    def zoom(self) -> None:
        if self._shown_task is not None:
            self.draw(self._shown_task, self._now)


def troubles_of(
    run: RunTimeline, still: Mapping[RankView, float], slow: Sequence[Straggler]
) -> list[tuple[str, str]]:
    """Return mark and words of the stalled ranks, with seconds, and of the slow ones."""
    first = islice(still.items(), MAX_NAMED)
    told = [("‖", f"{view.rank} {view.host} no step {span_text(age)}") for view, age in first]
    if len(still) > MAX_NAMED:
        told.append(
            ("‖", count_text(len(still) - MAX_NAMED, "more makes no step", "more make no step"))
        )
    for each in slow[:MAX_NAMED]:
        price = f", costs {cost_text(each)}" if each.cost_ms else ""
        told.append(("▲", f"{each.rank} {run.ranks[each.rank].host} slow {each.part}{price}"))
    return told


class RunView(Vertical):
    DEFAULT_CSS = """
    RunView > #news { height: auto; padding: 0 1; display: none; }
    RunView > #ranks-row { height: auto; }
    RunView #ranks-panel { width: 3fr; height: 100%; }
    RunView #ranks { height: 1fr; }
    RunView #strip-panel { width: 2fr; height: 100%; display: none; }
    RunView #traceback-panel { width: 3fr; height: 100%; }
    RunView #ended-panel { width: 2fr; height: 100%; }
    RunView #traceback { height: 1fr; }
    RunView #traceback-text { min-height: 100%; }
    RunView #ended { height: 1fr; }
    RunView > #error { display: none; }
    RunView > #tail-panel { height: 1fr; }
    RunView > #heat-panel { height: 1fr; display: none; }
    """

    order = SORTS[0]
    condition: Condition[RankOfRun] | None = None
    _plots_wanted = False
    _printed = 0
    _middle = ""
    """The part below the ranks: the plots, the error, or none."""

    def __init__(self, keymap: Keymap, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._keys = partial(keymap.hints, "run")
        self._hint = partial(console_hint, keymap=keymap)

    def compose(self) -> ComposeResult:
        keys = self._keys
        yield Verdict("no run yet: type 'run SCRIPT', or 'demo'", id="health")
        yield Words(id="news")
        yield Tiles(TILES, id="tiles")
        with Horizontal(id="ranks-row"):
            with Panel(
                "Ranks", keys=keys(*KEYS_OF_RANKS), legend=parts_legend(), id="ranks-panel"
            ):
                yield LineTable(
                    RANK_COLUMNS, same=lambda row: row.view.rank, empty="no ranks yet", id="ranks"
                )
            with Panel("Step time", id="strip-panel"):
                yield RunHeat(id="strip")
        yield Plots(PLOTS, PLOT_CELLS, id="plots")
        with Horizontal(id="error"):
            with (
                Panel("Traceback", keys=keys("plots"), id="traceback-panel"),
                VerticalScroll(id="traceback"),
            ):
                yield Words(id="traceback-text")
            with Panel("First to last", id="ended-panel"):
                yield LineTable(ENDED_COLUMNS, same=lambda row: row.view.rank, id="ended")
        with Panel("Log", keys=keys("view logs"), id="tail-panel"):
            yield LogTail(id="tail", empty="nothing said yet")
        with Panel("Heat map", keys=keys("heat", "heat next", "heat span"), id="heat-panel"):
            yield RunHeat(id="heat")

    @property
    def heat(self) -> RunHeat:
        return self.query_one("#heat", RunHeat)

    def turn_heat(self, what: str, known: Sequence[str]) -> str:
        """Show or hide the heat map, or change its content; return the error in ``what``."""
        panel, inside = self.query_one("#heat-panel"), self.has_focus_within
        if not what:
            panel.display = not panel.display
        elif said := self.heat.choose(what, known):
            return said
        else:
            panel.display = True
        for part in LISTED:
            self.query_one(part).display = not panel.display
        if inside:
            shown = self.heat if panel.display else self.query_one("#ranks")
            self.app.call_after_refresh(shown.focus)
        return ""

    @property
    def shows_heat(self) -> bool:
        return self.query_one("#heat-panel").display

    def rank_under_cursor(self) -> str:
        row: RankRow | None = self.query_one("#ranks", LineTable).row_under_cursor()
        rank = self.heat.rank if self.shows_heat else row.view.rank if row is not None else None
        return "" if rank is None else str(rank)

    def sort(self, order: str) -> str:
        """Order the ranks by ``order``, a heading, or the ``next``; return its name, empty if there is none."""
        order = ORDERS.get(order, order)
        if order == "next":
            order = SORTS[(SORTS.index(self.order) + 1) % len(SORTS)]
        elif order not in SORTS:
            return ""
        self.order = order
        self.query_one("#ranks", LineTable).to_top()
        return self.order

    def filter(self, text: str) -> None:
        """Show only ranks that match ``text``; all if it is empty; raises ``UsageError`` if it is invalid."""
        self.condition = parse_condition(text, RANK_FIELDS) if text else None
        self.query_one("#ranks", LineTable).to_top()

    def choose_plots(self, names: Sequence[str]) -> str:
        """Show the curves whose titles begin with one of ``names`` first, or others; without names swap curves and error.

        They stand beside the ranks, which replace a heat map. Returns a message unless the screen shows the effect.
        """
        said = self.query_one(Plots).choose(names) if names else ""
        if self.shows_heat:
            self._plots_wanted = True
            self.turn_heat("", ())
            return "ranks and plots: h is the heat map again"
        self._plots_wanted = bool(names) or not self._plots_wanted
        return said if names or self.query_one("#traceback-text", Words).content else NO_ERROR

    def mark_lines(self, pattern: re.Pattern[str] | None) -> None:
        """Mark matches of ``pattern`` in the log's tail; None marks nothing."""
        self.query_one("#tail", LogTail).found = pattern

    def draw(self, task: RequestTask, now: float) -> None:
        """Show the run of ``task`` at ``now`` (UNIX seconds)."""
        # The heat map replaces the ranks, but reports the number of a filter's matches.
        listed = not self.shows_heat or self.condition is not None
        with task.lock:
            timeline = task.run
            figures = present(timeline, now)
            task.input_priority.give_way()
            verdict, tiles = verdict_of(task, now, figures), tiles_of(task, now, figures)
            ranks = RankRows(timeline, now, figures, task.history, self.order) if listed else None
            early = starting(timeline)
            left_out = unreported(timeline)
            shown, filtered = _match_ranks(timeline, ranks or [], self.condition)
            plots = [] if self.shows_heat else plots_of(task, now, figures, self.query_one(Plots))
            said = verdict[2][: max(0, self.size.width - VERDICT_EDGE)]
            news, (failed, traceback) = (
                news_of(timeline, now, said, self.size.width - 2, self._hint),
                traceback_of(timeline),
            )
            log = self.query_one("#tail", LogTail)
            # Newest lines if the log is followed; for a reader, and before a layout, those that were last.
            tail = timeline.logs.newest((log.follows and log.size.height) or LAST_LINES)
            said_lines = len(timeline.logs)
            tail += [LastLine(line, 1, line.t) for line in timeline.progress.values()]
            ended = ended_ranks(timeline, now) if traceback else []
        task.input_priority.give_way()  # nothing of it is shown yet
        self.query_one("#health", Verdict).say(*verdict)
        self.query_one("#tiles", Tiles).show(tiles)
        words = self.query_one("#news", Words)
        words.show(news)
        words.display = bool(news) and self.size.height > 2 * NEWS_LINES
        if self.shows_heat:
            self.heat.draw(task, now, filtered, figures)
            return
        own = figures.waits.usual_own_ms is not None
        self._entitle(figures.hosts, filtered, early=early, waits=own)
        if ranks is not None:
            left_out += [] if timeline.end is None else ["samples/s"]
            self._draw_ranks(ranks, shown, left_out, early=early)
        self._draw_middle(plots, failed, traceback, ended)
        self._printed = said_lines
        self._fit(news)
        if self.query_one("#strip-panel").display:
            self.query_one("#strip", RunHeat).draw(task, now, figures=figures)
        log.show_last(tail, len(timeline.ranks))
        said = f"the last {count_text(log.count, 'line')}" if log.count else ""
        self.query_one("#tail-panel", Panel).entitle(legend=said)

    def _entitle(self, where: Counter[str], filtered: str, *, early: bool, waits: bool) -> None:
        hosts = [f"{host} {count}" for host, count in where.items()]
        named = hosts if len(hosts) <= 4 else [f"{len(hosts):,} hosts"]
        title = " · ".join([f"Ranks {where.total():,}", *named])
        legend = "" if early else parts_legend(waits=waits)  # the heading has that of a start
        self.query_one("#ranks-panel", Panel).entitle(title, filtered, legend=legend)

    def _draw_ranks(
        self, ranks: RankRows, shown: Sequence[RankRow], left_out: list[str], *, early: bool
    ) -> None:
        table: LineTable[RankRow] = self.query_one("#ranks", LineTable)
        hidden = (*STEP_TITLES, *(("state",) if ranks.calm else ()))
        left_out += hidden if early else (START_TITLE, "samples/s" if ranks.hung else "where")
        left_out += () if ranks.priced else (COSTS_TITLE,)
        left_out += () if ranks.own_known else (OWN_TITLE,)
        table.leave_out(left_out)
        table.filtered = self.condition is not None
        table.sorted_by = "" if self.order == "rank" else self.order
        table.show(shown)

    def _draw_middle(
        self, plots: list[PlotData], failed: int | None, traceback: str, ended: list[RankRow]
    ) -> None:
        error = bool(traceback) and not self._plots_wanted
        self._middle = "#error" if error else "#plots" if plots else ""
        self.query_one(Plots).show(plots)
        text = self.query_one("#traceback-text", Words)
        if error and str(text.content) != traceback:
            whose = "Traceback" if failed is None else f"Traceback of rank {failed}"
            self.query_one("#traceback-panel", Panel).entitle(whose)
            text.show(Text(traceback))
            self.query_one(
                "#traceback"
            ).anchor()  # what the log leaves of the room is known only later
        self.query_one("#ended", LineTable).show(ended)

    def on_resize(self) -> None:
        self._fit(None)

    def _fit(self, news: Text | None) -> None:
        """Share the room among ranks, the part below them, and the log."""
        words, width = self.query_one("#news", Words), self.size.width
        if self.shows_heat or not width:
            return
        framed = self.query_one("#ranks-panel", Panel).framed
        if news is not None:
            lines = len(news.wrap(self.app.console, width - 2)) if words.display else 0
            words.styles.height = min(lines, NEWS_LINES if framed else 2)
        frame, above = 2 if framed else 1, 1 + (3 if framed else 1)
        if words.display and words.styles.height is not None:
            above += int(words.styles.height.value)
        rows = len(self.query_one("#ranks", LineTable).rows)
        self.query_one("#strip-panel").display = rows > FEW_RANKS and width >= STRIP_CELLS
        ranks, middle, log = share_lines(
            self.size.height - above, frame, max(1, rows), LEAST_ROWS[self._middle], self._printed
        )
        self.query_one("#ranks-row").styles.height = ranks
        for part in ("#plots", "#error"):
            self.query_one(part).display = part == self._middle and bool(middle)
            self.query_one(part).styles.height = middle
        self.query_one("#tail-panel").display = bool(log)


def share_lines(
    lines: int, frame: int, rows: int, middle: int, printed: int
) -> tuple[int, int, int]:
    """Return the lines of the ranks, of the part below them, and of the log out of ``lines``; 0 without room.

    Plots take no more than ``MOST_ROWS`` as long as others need the rest: the ranks, then the log.

    Args:
        frame: Lines of a panel's frame.
        rows: Rows of ranks.
        middle: The fewest rows of the part between ranks and log; 0 for nothing.
        printed: Lines for the log.
    """
    wanted = frame + 1 + rows
    least = min(lines, wanted, frame + 1 + LEAST_RANKS)
    room = lines - least
    below = min(frame + MOST_ROWS, max(frame + middle, room * 3 // 5)) if middle else 0
    if below > room:
        below = 0
    log = min(frame + LOG_ROWS, room - below)
    if log <= frame:
        log = 0
        below = min(frame + MOST_ROWS, room) if below else 0
    most = lines - below - log
    if rows > FEW_RANKS and log:
        most = min(most, max(frame + 1 + FEW_ROWS, (lines - below) * 2 // 3))
    ranks = max(least, min(wanted, most))
    log = lines - ranks - below if log else 0
    taller = frame + lines // TALL - below if below and lines // TALL > MOST_ROWS else 0
    if log - taller >= frame + max(LOG_ROWS, printed):
        below, log = below + taller, log - taller
    return ranks, below, log


def _match_ranks(
    timeline: RunTimeline, ranks: Sequence[RankRow], condition: Condition[RankOfRun] | None
) -> tuple[Sequence[RankRow], str]:
    if condition is None:
        return ranks, ""
    wanted = {row.view.rank for row in condition.matching(ranks_of(timeline))}
    shown = [row for row in ranks if row.view.rank in wanted]
    return shown, f"{len(shown)} of {len(ranks)} ranks  filter {condition.text}"
