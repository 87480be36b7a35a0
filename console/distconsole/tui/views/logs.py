"""The ranks' output: filtered, folded, searched."""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace

from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from distconsole.errors import ConsoleError
from distconsole.model.names import count_text
from distconsole.model.run_events import LogLine
from distconsole.model.time_text import is_time, span_seconds, time_of_day
from distconsole.runs.logs.buffer import LogEncoder
from distconsole.runs.logs.counts import Pace
from distconsole.runs.logs.filter import LogFilter, exchange_word, parse_filter, parse_pattern
from distconsole.runs.logs.rows import LogRows
from distconsole.text.progress import alike
from distconsole.text.tables import shorten_middle
from distconsole.tui.prompt.keys import WHATS
from distconsole.tui.replaying import ReplayTask
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.logs import (
    Reading,
    first_error_text,
    missing_text,
    rate_plot,
    reading_verdict,
)
from distconsole.tui.widgets.line_table import NONE_MATCH
from distconsole.tui.widgets.lines import Verdict, Words
from distconsole.tui.widgets.log_line import LineStyle, bar_text, rank_colours
from distconsole.tui.widgets.log_sides import LogSides
from distconsole.tui.widgets.log_tail import LogTail
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plots import MOST_ROWS, PlotPanel

TURN_SECONDS, PAUSE_SECONDS = 0.01, 0.002
"""Seconds of making rows at once, and of the pause after it, in which keys get their turn."""

SHOWING_SECONDS = 0.25
"""Least seconds between two displays of such rows, except for an awaited line."""

TITLE_CELLS = 32
SIDES_CELLS = 120
"""Least cells of a view with panels beside the lines."""


class LogsView(Vertical):
    """All lines of the run, or those that a filter lets through."""

    DEFAULT_CSS = """
    LogsView > #logs-row { height: 1fr; }
    LogsView #lines-panel { width: 1fr; height: 100%; }
    LogsView #log-lines { height: 1fr; }
    LogsView #log-bars { height: auto; max-height: 8; border-top: solid $panel; }
    """

    _shown_task: RequestTask | None = None
    _rows: LogRows | None = None
    _pace = Pace()
    _over = False
    _missing = ""
    _filter = LogFilter()
    _fold = True
    _digits = False
    _pattern: re.Pattern[str] | None = None
    _finding = ""
    _search_from: int | None = None
    """The reader's place at the beginning of typing."""
    _origin: int | None = None
    """The first row of a search; None once it has a match."""
    _anchor: int | None = None
    """The buffered line to go to when its row is made."""
    _times: bool | None = None
    _jumps = 0
    _shown_at = 0.0
    _goes_on = False
    """True while rows are made in turns."""

    def compose(self) -> ComposeResult:
        yield Verdict("no run yet: type 'run SCRIPT', or 'demo'", id="logs-line")
        yield PlotPanel(keys="a or a click goes to a time", id="lines-plot")
        with Horizontal(id="logs-row"):
            yield LogSides(id="log-sides")
            with Panel("Lines", id="lines-panel"):
                yield LogTail(id="log-lines")
                yield Words(id="log-bars")

    @property
    def tail(self) -> LogTail:
        return self.query_one(LogTail)

    @property
    def reading(self) -> bool:
        return self._rows is not None and self._rows.behind

    def filter(self, wanted: str) -> None:
        """Show only lines that pass ``wanted`` (see ``parse_filter``), all if empty; raises ``ConsoleError`` if invalid."""
        try:
            self._filter = parse_filter(wanted, self._now())
        except ValueError as error:
            raise ConsoleError(
                str(error),
                "filter 0-3 host:gpu* err errors since:10m /regex/ -without word; 'filter' alone shows all",
            ) from None
        self._begin_again()

    def find(self, wanted: str, *, done: bool = True) -> None:
        """Search ``wanted``, a regular expression or else words, from the reader's place; empty ends the search.

        Until it is ``done``, each change searches from the same place.
        """
        if self._search_from is None:
            self._search_from = self.tail.cursor
        if wanted != self._finding:
            self._finding = wanted
            try:
                pattern = parse_pattern(wanted) if wanted else None
            except ValueError:
                pattern = parse_pattern(re.escape(wanted))
            self._pattern = self.tail.found = pattern
            if self._rows is not None:
                self._rows.search(pattern)
            self._origin = self._search_from if pattern is not None else None
            self._look()
        if done:
            self._search_from = None

    def do(self, what: str, argument: str) -> None:
        """Do one of ``WHATS``; raises ``ConsoleError`` if it has no target, or ``what`` is unknown."""
        tail = self.tail
        match what:
            case "error" | "error-before" | "first-error" | "next" | "previous":
                self._go(what)
            case "end":
                tail.action_follow()
            case "fold":
                self._fold = not self._fold
                self._begin_again()
            case "digits":
                self._digits = not self._digits
                self._fold = self._fold or self._digits
                self._begin_again()
            case "wrap":
                tail.wraps = not tail.wraps
            case "times":
                self._times = tail.times = not tail.times
            case "copy":
                self._copy()
            case "at":
                self._go_to_time(argument)
            case _:
                known = "; ".join(f"{name}: {words}" for name, words in WHATS.items())
                raise ConsoleError(f"'lines {what}' is not understood", known)
        self._say()

    def draw(self, task: RequestTask) -> None:
        if task is not self._shown_task:
            before, self._shown_task, self._pace = self._shown_task, task, Pace()
            if before is not None and not (task.run.run and task.run.run == before.run.run):
                self._filter, self._finding = LogFilter(), ""
                self._pattern = self.tail.found = None
            self._begin_again(keep_place=False)
        if task.jumps != self._jumps:
            self._jumps, self.tail.follows = task.jumps, True
        with task.lock:
            progress = list(task.run.progress.values())
            world, until = task.run.world, task.run.until(task.unix())
            self._over = task.run.end is not None
            self._missing = missing_text(task.run.findings)
        self._pace.look(until, task.log_buffer.counts)
        task.input_priority.give_way()
        self.tail.times = self.size.width >= 100 if self._times is None else self._times
        self._advance()
        self._show(world)
        self._show_bars(progress, world)
        self._show_counts(task, until)

    def on_resize(self) -> None:
        if self._shown_task is not None:
            self.draw(self._shown_task)  # what there is room for is another

    def _begin_again(self, *, keep_place: bool = True) -> None:
        """Make the rows of the run again; the reader stays at the same line."""
        task, before = self._shown_task, self._rows
        if task is None:
            return
        row = self.tail.row_under_cursor() if keep_place and not self.tail.follows else None
        self._anchor = row.line if row is not None else None
        if not keep_place:
            self.tail.follows = True
        self._rows = LogRows(task.log_buffer, self._filter, fold=self._fold, numbers=self._digits)
        self._rows.search(self._pattern)
        if before is not None:
            before.close()
        self._look()

    def _look(self) -> None:
        self._advance()
        self._show(self.tail.world)

    def _advance(self) -> None:
        """Make rows for some milliseconds; the rest follows in turns with the screen's other work."""
        rows = self._rows
        if rows is not None and not rows.advance(TURN_SECONDS):
            self._pause()

    def _pause(self) -> None:
        if not self._goes_on:
            self._goes_on = True
            # A timer of Textual (8.2) that is so short may never fire: see low_overhead.on_resize.
            asyncio.get_running_loop().call_later(PAUSE_SECONDS, self.call_later, self._go_on)

    def _go_on(self) -> None:
        task, self._goes_on = self._shown_task, False
        if task is not None and task.input_priority.awaited:
            self._pause()
            return
        self._advance()
        awaited = self._anchor is not None or self._origin is not None
        rested = time.monotonic() >= self._shown_at + SHOWING_SECONDS
        if awaited or rested or not self.reading:
            self._show(self.tail.world)

    def _show(self, world: int) -> None:
        rows = self._rows
        if rows is None:
            return
        self._shown_at = time.monotonic()
        tail, task = self.tail, self._shown_task
        until = task.moment_t if isinstance(task, ReplayTask) and task.travelling else None
        tail.limit = None if until is None else rows.rows_until(until)
        tail.show(rows, world)
        if self._anchor is not None and (rows.taken > self._anchor or not rows.behind):
            anchor, self._anchor = self._anchor, None
            tail.go_to(rows.row_of_line(anchor))
        if self._origin is not None:
            self._go_to_found(rows)
        self._say()

    def _go_to_found(self, rows: LogRows) -> None:
        """Go to the first match from the search's origin on, else to the last before."""
        origin = self._origin or 0
        place = rows.found.after(origin - 1)
        if place is None and not rows.behind:
            place = rows.found.before(origin)
        if place is not None:
            self.tail.go_to(place)
        if place is not None or not rows.behind:
            self._origin = None

    def _go(self, what: str) -> None:
        rows, at = self._rows, self.tail.cursor
        if rows is None:
            raise ConsoleError("there are no lines yet", "run SCRIPT, or attach RUN")
        place = {
            # A reader at the end has read all: then the next error is the first one.
            "error": rows.errors.after(-1 if self.tail.follows else at),
            "error-before": rows.errors.before(at),
            "first-error": rows.first_error.number if rows.first_error is not None else None,
            "next": rows.found.after(at),
            "previous": rows.found.before(at),
        }[what]
        if what == "first-error" and rows.hides_first_error:
            hidden = f"the first error, of {first_error_text(rows)}, is hidden by the filter"
            raise ConsoleError(hidden, "Esc shows all lines")
        if place is None:
            raise ConsoleError(*self._nothing(what, rows))
        row, task = rows.row(place), self._shown_task
        if row is not None and place >= self.tail.count and isinstance(task, ReplayTask):
            task.go_to(row.t)  # it is later than the time that is shown
        else:
            self.tail.go_to(place)

    def _nothing(self, what: str, rows: LogRows) -> tuple[str, str]:
        more = "; still looking" if rows.behind else ""
        where = "after" if what in ("next", "error") else "before"
        if what in ("next", "previous"):
            if not self.searched:
                return "nothing is searched", "find WORDS, or / in the view"
            return f"no line {where} this one has {self._finding!r}{more}", ""
        hint = "Esc shows all lines" if self._filter else ""
        if not rows.errors.count:
            return f"no line looks like an error{more}", hint
        return f"no error {where} this line{more}", hint

    def _copy(self) -> None:
        row = self.tail.row_under_cursor()
        line = self._rows.line_of(row) if self._rows is not None and row is not None else None
        if line is None:
            raise ConsoleError("there is no line to copy", "")
        self.app.copy_to_clipboard(line.text)

    def _go_to_time(self, text: str) -> None:
        rows = self._rows
        first = rows.row(0) if rows is not None else None
        if rows is None or first is None:
            raise ConsoleError("there are no lines yet", "run SCRIPT, or attach RUN")
        t = time_of_day(text, self._now())
        if t is None:
            seconds = span_seconds(text.removeprefix("+"))
            if seconds is None:
                raise ConsoleError(f"{text!r} is not a time", "lines at 14:05:10, or lines at 90s")
            t = first.t + seconds
        self.tail.go_to(rows.row_at(t))

    def on_click(self, event: events.Click) -> None:
        plot = self.query_one("#lines-plot", PlotPanel).plot
        rows, task = self._rows, self._shown_task
        place = event.get_content_offset(plot)
        x = plot.x_at(place.x) if place is not None else None
        if x is not None and rows is not None and task is not None:
            self.tail.go_to(rows.row_at(task.log_buffer.counts.first + x))

    @on(LogSides.Chosen)
    def choose(self, event: LogSides.Chosen) -> None:
        self.filter(exchange_word(self._filter.text, event.kind, event.word))

    def _now(self) -> float:
        """The run's newest time: a replayed run may be long over."""
        return (self._shown_task and self._shown_task.run.last_t) or 0.0

    def _show_bars(self, progress: list[LogLine], world: int) -> None:
        if self._filter:
            encoder = LogEncoder()
            lines = [(encoder.take(line), line) for line in progress]
            fits = self._filter.test(encoder.speakers)
            progress = [event for line, event in lines if fits(line)]
        bars = self.query_one("#log-bars", Words)
        room = max(1, min(8, self.size.height // 4))
        style = LineStyle(self.tail.cells, colours=rank_colours(self.app), names=self.tail.names)
        # The least advanced first; if there are more, those that look alike are one.
        shown = alike(progress, fold=len(progress) > room)[:room]
        texts = [bar_text(bar, world, style) for bar in shown]
        bars.show(Text("\n", no_wrap=True, overflow="ellipsis").join(texts))
        bars.display = bool(texts)

    def _show_counts(self, task: RequestTask, until: float) -> None:
        book, panel = task.log_buffer, self.query_one("#lines-plot", PlotPanel)
        framed, sides = self.query_one("#lines-panel", Panel).framed, self.query_one(LogSides)
        sides.display = framed and self.size.width >= SIDES_CELLS
        if sides.display:
            sides.show(book, self._filter, self.tail.world)
        bins = book.counts.bins
        panel.display = framed and bool(bins.lines)
        if not panel.display:
            return
        panel.styles.height = 2 + max(5, min(MOST_ROWS, self.size.height // 6))
        passed = until - book.counts.first
        whole = len(bins.lines)
        if is_time(passed) and not self._over:
            whole = max(1, int(passed / bins.seconds))  # the newest bin goes on
        said = "" if self._over else f"{self._pace.lines_s:,.0f} lines/s"
        drawn = panel.plot.data
        key = f"{task.number} {len(book) if self._over else ''}"
        step = max(1.0, panel.plot.x_dot)
        if drawn is not None and drawn.key == key and whole * bins.seconds < drawn.newest + step:
            panel.show(replace(drawn, said=((said, ""),) if said else ()))
        else:
            panel.show(rate_plot(book.counts, whole, said, key))

    @on(LogTail.Moved)
    def _say(self) -> None:
        rows, task, tail = self._rows, self._shown_task, self.tail
        if rows is None or task is None:
            return
        count = len(task.log_buffer)
        lines = f"{rows.lines:,} of {count:,} lines" if self._filter else count_text(count, "line")
        past = None if tail.limit is None else tail.count
        row = None if tail.follows else tail.row_under_cursor()
        reading = Reading(rows, self._pace, lines, self._over, past, row, self._missing)
        self.query_one("#logs-line", Verdict).say(*reading_verdict(reading))
        panel = self.query_one("#lines-panel", Panel)
        tail.empty = NONE_MATCH if self._filter and count else ""
        state = [self.found_words] if self.searched else []
        if self._filter or panel.framed:
            state.append(f"filter {self._filter.text or 'none'}")
        state.append("digits folded" if self._digits else "folded" if self._fold else "not folded")
        if tail.wraps or panel.framed:
            state.append(f"wrap {'on' if tail.wraps else 'off'}")
        where = "at the end ●" if self._over else "following ●"
        state.append(where if tail.follows else "End follows")
        alone = " · Esc shows all" if self._filter else ""
        title = shorten_middle(task.run.run or task.run.name, TITLE_CELLS)
        panel.entitle(title, " · ".join(state), legend=f"{lines}{alone} · / find")

    @property
    def is_filtered(self) -> bool:
        return bool(self._filter)

    @property
    def searched(self) -> bool:
        return self._pattern is not None

    @property
    def found_words(self) -> str:
        """The number of matches, and the reader's place among them; empty without a search."""
        rows = self._rows
        if rows is None or self._pattern is None:
            return ""
        place = rows.found.rank_of(self.tail.cursor)
        where = f"{place:,} of " if place is not None else ""
        more = "+" if rows.behind else ""
        return f"{self._finding!r}: {where}{rows.found.count:,}{more}"
