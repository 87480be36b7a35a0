"""Runs side by side: what is to be said, their curves on one axis, figures, and what was configured otherwise."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.errors import UsageError
from distconsole.model.comparison import (
    LETTERS,
    ComparedCurves,
    ComparedRun,
    Comparison,
    Figure,
    Setting,
)
from distconsole.model.events import RunsCompared
from distconsole.runs.compare.statistics import AXES
from distconsole.runs.present import reading_text
from distconsole.text.compare import figure_text, ratio_text, run_words, value_text
from distconsole.text.tables import Column
from distconsole.tui.tasks import RequestTask
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line, Words
from distconsole.tui.widgets.plots import Plots

PLOTS = 3
PLOT_CELLS = 40
WORSE_SHARE = 0.03
"""A figure is marked if it is worse than the first run's by more."""
NAME_CELLS = 26
COLOURS = ("accent", "good", "warn", "note", "bad", "strong", "faint", "accent")
"""By letter; the letter stands at the end of each curve, for who sees no colours."""


CompareRow = Figure | Setting


class CompareView(Vertical):
    DEFAULT_CSS = """
    CompareView > #compare-runs { height: auto; max-height: 8; padding: 0 1; text-wrap: nowrap; text-overflow: ellipsis; }
    CompareView > #compare-same { color: $text-muted; }
    CompareView > #compare-words { height: auto; max-height: 40%; padding: 0 1; }
    CompareView > #compare-plots { height: 2fr; min-height: 5; max-height: 20; }
    CompareView > #compare-table { height: 2fr; min-height: 3; border-top: solid $panel; }
    """

    axis = AXES[0]
    _shown: RunsCompared | None = None
    _drawn_size = (0, 0)

    def compose(self) -> ComposeResult:
        yield Words(
            "no runs are compared: mark two in the list of runs, or type 'compare RUN RUN'",
            id="compare-runs",
        )
        yield Words(id="compare-words")
        yield Plots(PLOTS, PLOT_CELLS, id="compare-plots")
        yield LineTable(
            [Column("", NAME_CELLS, _name)], same=lambda row: _name(row).plain, id="compare-table"
        )
        yield Line(id="compare-same")

    def turn(self, axis: str) -> str:
        """Lay the curves along another axis, the next one if empty; return what it is now; raises ``UsageError`` if there is none like that."""
        if axis in ("", "next"):
            axis = AXES[(AXES.index(self.axis) + 1) % len(AXES)]
        axis = {"time": "seconds"}.get(axis, axis)
        if axis not in AXES:
            raise UsageError(f"there is no axis '{axis[:40]}'", f"one of: {', '.join(AXES)}")
        self.axis = axis
        self._draw_curves()
        return f"curves by {'time' if axis == 'seconds' else axis}"

    def choose(self, names: list[str]) -> None:
        self.query_one(Plots).choose(names)
        self._draw_curves()

    def draw(self, task: RequestTask) -> None:
        with task.lock:
            made, error = task.compared, task.error
        if made is None:
            said = f"✗ {error.message}" if error is not None else "… reading the runs"
            self.query_one("#compare-runs", Words).show(said)
            return
        size = (self.size.width, self.size.height)
        if made is self._shown and size == self._drawn_size:
            return
        if made is not self._shown:
            self.query_one(Plots).choose([])
        self._shown, self._drawn_size = made, size
        found = made.comparison
        self.query_one("#compare-runs", Words).show(_runs(found))
        self.query_one("#compare-words", Words).show(_words(found))
        table: LineTable[CompareRow] = self.query_one("#compare-table", LineTable)
        table.set_columns(_columns(found, self.size.width))
        table.show([*found.figures, *found.differs])
        same = f"the same: {', '.join(found.same)}" if found.same else ""
        self.query_one("#compare-same", Line).show(same)
        self._draw_curves()

    def _draw_curves(self) -> None:
        known = () if self._shown is None else self._shown.curves
        found = [each for each in known if each.axis == self.axis]
        titles = {each.title for each in found}
        # Throughput, step time and GPU use are known along time alone.
        found += [each for each in known if each.axis == "seconds" and each.title not in titles]
        plots = self.query_one(Plots)
        plots.show([_plot(each) for each in plots.pick(found, lambda each: each.title)])


def _plot(shown: ComparedCurves) -> PlotData:
    curves, said = [], []
    for each in shown.curves:
        style = colour_of(each.letter)
        newest = reading_text(each.values[-1]) if each.values else "no number"
        said.append((f"{each.letter} {newest}", style))
        values = each.values
        curves.append(
            Curve(each.xs, values, values, values, each.broken, each.gaps, each.letter, style)
        )
    over = "" if shown.axis == "seconds" else shown.axis
    return PlotData(shown.title, tuple(curves), tuple(said), over, zero=not over)


def colour_of(letter: str) -> str:
    return COLOURS[LETTERS.index(letter)]


def _runs(found: Comparison) -> Text:
    return Text("\n", no_wrap=True, overflow="ellipsis").join(
        Text(run_words(run), style=colour_of(run.letter), end="") for run in found.runs
    )


def _words(found: Comparison) -> Text:
    lines = [Text(f"• {line}", end="") for line in found.words]
    lines += [Text(f"note: {note}", style="faint", end="") for note in found.notes]
    return Text("\n").join(lines)


def _name(row: CompareRow) -> Text:
    if isinstance(row, Setting):
        return Text(row.name, style="warn")
    return Text(f"{row.title} {row.unit}" if row.unit in ("ms", "%") else row.title)


def _columns(found: Comparison, width: int) -> list[Column[CompareRow]]:
    each = max(10, min(40, (width - NAME_CELLS - 1) // len(found.runs) - 1))
    columns = [_column(run, place, each) for place, run in enumerate(found.runs)]
    return [Column("", NAME_CELLS, _name), *columns]


def _column(run: ComparedRun, place: int, width: int) -> Column[CompareRow]:
    def cell(row: CompareRow) -> Text:
        if isinstance(row, Setting):
            return Text(value_text(row.values[place], width))
        ratio = (ratio_text(row, place), _ratio_style(row, place))
        return Text.assemble(f"{figure_text(row, place):>8} ", ratio, end="")

    return Column(f"{run.letter} {run.summary.run}", width, cell)


def _ratio_style(figure: Figure, place: int) -> str:
    """Return the style of a ratio: whether it is worse or better than the first run's."""
    ratio = figure.ratios[place]
    if ratio is None or not figure.better or abs(ratio - 1) <= WORSE_SHARE:
        return "faint"
    return "bad" if (ratio > 1) == (figure.better == "less") else "good"
