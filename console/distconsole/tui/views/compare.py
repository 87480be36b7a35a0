"""Runs side by side: remarks, curves on one axis, figures, and differences in configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Container, Vertical

from distconsole.errors import UsageError
from distconsole.model.comparison import (
    LETTERS,
    ComparedCurves,
    ComparedFigure,
    ComparedRun,
    Comparison,
    Setting,
)
from distconsole.model.events import RunsCompared
from distconsole.runs.compare.figures import AXES
from distconsole.runs.present import reading_text
from distconsole.text.compare import figure_text, ratio_text, run_words, value_text
from distconsole.text.tables import Column, shorten_middle
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Verdict, Words
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plots import MOST_ROWS, Plots, spread

PLOTS = 6
PLOT_CELLS = 40
WORSE_SHARE = 0.03
"""Figures worse than the first run's by more than this share are marked."""
NAME_CELLS, WIDE_NAME_CELLS = 26, 36
COLOURS = ("curve", "optimizer", "data", "forward", "backward", "strong", "note", "faint")
"""By letter; the letter at the end of each curve works without colours."""
VALUE_CELLS, MOST_VALUE_CELLS = 10, 24
CHANGE_CELLS, BAR_CELLS = 8, 21
LEAST_LINES = 16
"""In fewer lines the words about the runs leave no room for their figures."""


NONE = "no runs are compared: mark two in the list of runs, or type 'compare RUN RUN'"
READING = "reading the runs"

CompareRow = ComparedFigure | Setting


class CompareView(Vertical):
    DEFAULT_CSS = """
    CompareView > #compare-top { layout: horizontal; height: auto; }
    .-ruled CompareView > #compare-top, .-short CompareView > #compare-top { layout: vertical; }
    CompareView #compare-runs { text-wrap: nowrap; text-overflow: ellipsis; }
    CompareView Panel { width: 1fr; }
    CompareView > #compare-figures { height: 1fr; min-height: 4; }
    CompareView #compare-table { height: 1fr; }
    """

    axis = AXES[0]
    _shown: RunsCompared | None = None
    _drawn_size = (0, 0)

    def compose(self) -> ComposeResult:
        yield Verdict(NONE, id="compare-verdict")
        with Container(id="compare-top"):
            with Panel("Runs", keys="F6 all runs", id="compare-runs-panel"):
                yield Words(id="compare-runs")
            with Panel("What differs", id="compare-words-panel"):
                yield Words(id="compare-words")
        yield Plots(PLOTS, PLOT_CELLS, id="compare-plots")
        with Panel("Figures", id="compare-figures"):
            yield LineTable(
                [Column("", NAME_CELLS, _name)],
                same=lambda row: _name(row).plain,
                id="compare-table",
            )

    def on_mount(self) -> None:
        for part in self.query(Panel):
            part.display = False

    def turn(self, axis: str) -> str:
        """Lay the curves along another axis, the next one if empty; return its name; raises ``UsageError`` for an unknown one."""
        if axis in ("", "next"):
            axis = AXES[(AXES.index(self.axis) + 1) % len(AXES)]
        axis = {"time": "seconds"}.get(axis, axis)
        if axis not in AXES:
            raise UsageError(f"there is no axis '{axis[:40]}'", f"one of: {', '.join(AXES)}")
        self.axis = axis
        self._draw_curves()
        return f"curves by {'time' if axis == 'seconds' else axis}"

    def choose(self, names: list[str]) -> str:
        said = self.query_one(Plots).choose(names)
        self._draw_curves()
        return said

    def draw(self, task: RequestTask) -> None:
        with task.lock:
            made, error = task.compared, task.error
        if made is None:
            said = ("bad", "✗", error.message) if error is not None else ("note", "…", READING)
            self.query_one(Verdict).say(*said)
            return
        size = (self.size.width, self.size.height)
        if made is self._shown and size == self._drawn_size:
            return
        if made is not self._shown:
            self.query_one(Plots).choose([])
        self._shown, self._drawn_size = made, size
        found = made.comparison
        first, *others = (*found.words, "")
        self.query_one(Verdict).say(*_tone(found), first)
        self._draw_words(found, [each for each in others if each])
        table: LineTable[CompareRow] = self.query_one("#compare-table", LineTable)
        table.set_columns(_columns(found, self.size.width))
        table.show([*found.figures, *found.differs])
        same = f"the same: {', '.join(found.same)}" if found.same else ""
        panel = self.query_one("#compare-figures", Panel)
        panel.display = True
        panel.entitle(legend=same)
        self._draw_curves()

    def _draw_words(self, found: Comparison, words: list[str]) -> None:
        """Show the runs and the remarks on them in panels, of one height if side by side."""
        runs = Text("\n", no_wrap=True, overflow="ellipsis").join(
            Text(run_words(run), style=colour_of(run.letter), end="") for run in found.runs
        )
        remarks = [Text(f"• {line}", end="") for line in words]
        remarks += [Text(f"note: {note}", style="faint", end="") for note in found.notes]
        differs = Text("\n").join(remarks)
        lines = [len(found.runs), 0]
        beside = self.query_one("#compare-runs-panel", Panel).framed
        room = self.size.width // (2 if beside else 1) - 4
        if differs.plain:
            lines[1] = len(differs.wrap(self.app.console, max(1, room)))
        for name, text, own in zip(("runs", "words"), (runs, differs), lines, strict=True):
            panel = self.query_one(f"#compare-{name}-panel", Panel)
            self.query_one(f"#compare-{name}", Words).show(text)
            panel.display = bool(own) and self.size.height >= LEAST_LINES
            panel.styles.height = max(lines) + 2 if beside else 1 + min(own, self.size.height // 6)

    def _draw_curves(self) -> None:
        known = () if self._shown is None else self._shown.curves
        found = [each for each in known if each.axis == self.axis]
        titles = {each.title for each in found}
        # Throughput, step time and GPU use are known along time alone.
        found += [each for each in known if each.axis == "seconds" and each.title not in titles]
        plots = self.query_one(Plots)
        plots.rows = self._share_lines(len(found))
        plots.show([_plot(each) for each in plots.pick(found, lambda each: each.title)])

    def _share_lines(self, known: int) -> int:
        """Share the lines between the figures and ``known`` plots; return the rows of plots."""
        frame = 2 if self.query_one("#compare-figures", Panel).framed else 1
        above = 1
        for name in ("runs", "words"):
            panel = self.query_one(f"#compare-{name}-panel", Panel)
            lines = int(panel.styles.height.value) if panel.display and panel.styles.height else 0
            above = max(above, 1 + lines) if frame > 1 else above + lines
        left = self.size.height - above
        figures = frame + 1 + len(self.query_one("#compare-table", LineTable).rows)
        spare = max(min(left // 2, frame + MOST_ROWS), left - figures)
        rows, lines = spread(spare, frame, known, self.size.height)
        self.query_one(Plots).styles.height = lines
        return rows


def _plot(shown: ComparedCurves) -> PlotData:
    curves, said = [], []
    for each in shown.curves:
        style = colour_of(each.letter)
        newest = reading_text(each.values[-1]) if each.values else "no number"
        line = "━" if each.letter == LETTERS[0] else "┄"
        said.append((f"{line} {each.letter} {newest}", style))
        values = each.values
        dashed = each.letter != LETTERS[0]
        curves.append(
            Curve(
                each.xs, values, values, values, each.broken, each.gaps, each.letter, style, dashed
            )
        )
    over = "" if shown.axis == "seconds" else shown.axis
    return PlotData(shown.title, tuple(curves), tuple(said), over, zero=not over)


def colour_of(letter: str) -> str:
    return COLOURS[LETTERS.index(letter)]


def _tone(found: Comparison) -> tuple[str, str]:
    """Return tone and mark of the verdict: those of a failed run, else of the first differing figure."""
    if any(run.summary.state == "failed" for run in found.runs):
        return "bad", "✗"
    others = range(1, len(found.runs))
    styles = (_ratio_style(figure, place) for figure in found.figures for place in others)
    style = next((style for style in styles if style != "faint"), "")
    return {"bad": ("warn", "▲"), "good": ("good", "✓")}.get(style, ("note", "="))


def _name(row: CompareRow) -> Text:
    if isinstance(row, Setting):
        return Text(row.name, style="warn")
    return Text(f"{row.title} {row.unit}" if row.unit in ("ms", "%") else row.title)


def _columns(found: Comparison, width: int) -> list[Column[CompareRow]]:
    count = len(found.runs)
    ratio = CHANGE_CELLS if count > 2 else 0
    each = (width - NAME_CELLS - CHANGE_CELLS - BAR_CELLS) // count - 2
    each = max(VALUE_CELLS, min(MOST_VALUE_CELLS, each))
    columns = [_column(run, place, each, ratio) for place, run in enumerate(found.runs)]
    if count == 2:
        columns.append(Column("B to A", CHANGE_CELLS, lambda row: _ratio(row, 1), right=True))
        columns.append(
            Column(
                "", BAR_CELLS, lambda row: _bar(row, BAR_CELLS), 1, fill=_bar, heading=_bar_title
            )
        )
    return [Column("", NAME_CELLS, _name, wide=WIDE_NAME_CELLS), *columns]


def _column(run: ComparedRun, place: int, width: int, ratio: int) -> Column[CompareRow]:
    def cell(row: CompareRow) -> Text:
        if isinstance(row, Setting):
            return Text(value_text(row.values[place], width + ratio))
        text = Text(figure_text(row, place), end="")
        if ratio and place:
            text.append(" ").append_text(_ratio(row, place))
        return text

    title = f"{run.letter} {shorten_middle(str(run.summary.run), width + ratio - 2)}"
    return Column(title, width + ratio, cell, right=True, middle=True)


def _ratio(row: CompareRow, place: int) -> Text:
    if isinstance(row, Setting):
        return Text()
    return Text(ratio_text(row, place), style=_ratio_style(row, place))


def _bar(row: CompareRow, cells: int) -> Text:
    """Return the second run's distance from the first: half as much at the left end, twice as much at the right."""
    ratio = None if isinstance(row, Setting) else row.ratios[1]
    if isinstance(row, Setting) or ratio is None or not 0 < ratio < math.inf:
        return Text()
    half = (min(cells, BAR_CELLS) - 1) // 2
    length = round(max(-1.0, min(1.0, math.log2(ratio))) * half)
    left, right = "━" * -length, "━" * length
    text = Text(" " * (half - len(left)))
    text.append(left, style=_ratio_style(row, 1)).append("│", style="frame")
    return text.append(right, style=_ratio_style(row, 1))


def _bar_title(_rows: Sequence[CompareRow], cells: int) -> str:
    half = (min(cells, BAR_CELLS) - 1) // 2
    return f"{'half':<{half}}={'double':>{half}}"


def _ratio_style(figure: ComparedFigure, place: int) -> str:
    ratio = figure.ratios[place]
    if ratio is None or not figure.better or abs(ratio - 1) <= WORSE_SHARE:
        return "faint"
    return "bad" if (ratio > 1) == (figure.better == "less") else "good"
