"""Runs side by side as lines and tables."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.formats.figures import number_text
from distconsole.model.comparison import ComparedFigure, ComparedRun, Comparison
from distconsole.model.events import RunsCompared
from distconsole.model.names import count_text
from distconsole.model.time_text import date_text, duration_text
from distconsole.text.output import Output
from distconsole.text.tables import table

VALUE_CHARS = 60


def show_comparison(output: Output, compared: RunsCompared) -> None:
    for line in comparison_lines(compared.comparison):
        output.data(line)


def comparison_lines(found: Comparison) -> list[str]:
    letters = [run.letter for run in found.runs]
    lines = [run_words(run) for run in found.runs]
    lines += ["", *found.words]
    lines += [f"note: {note}" for note in found.notes]
    rows = [(figure.title, *_cells(figure)) for figure in found.figures]
    lines += ["", *table(("", *letters), rows, right=range(1, len(letters) + 1))]
    if found.differs:
        settings = [
            (each.name, *(value_text(value, VALUE_CHARS) for value in each.values))
            for each in found.differs
        ]
        lines += ["", *table(("differs", *letters), settings)]
    if found.same:
        lines += ["", f"the same: {', '.join(found.same)}"]
    return lines


def run_words(run: ComparedRun) -> str:
    summary = run.summary
    name = f" ({summary.name})" if summary.name not in ("", summary.run) else ""
    parts = [f"{run.letter}  {summary.run}{name}", summary.state, date_text(summary.started)]
    parts.append(duration_text(summary.seconds))
    ranks, hosts = count_text(summary.world_size, "rank"), count_text(len(summary.hosts), "host")
    parts.append(f"{ranks} on {hosts}, {summary.launcher}")
    return "  ".join(part for part in parts if part)


def figure_text(figure: ComparedFigure, place: int) -> str:
    value = figure.values[place]
    if value is None:
        return "-"
    if figure.name in ("seconds", "start_up"):
        return duration_text(value)
    if figure.name in ("steps", "restarts"):
        return f"{value:,.0f}"
    return f"{value:.4g}" if figure.name.startswith(("last.", "best.")) else number_text(value)


def ratio_text(figure: ComparedFigure, place: int) -> str:
    """Return the ratio of a run's figure to the first run's: ``+12 %``, ``x2.3``; empty if meaningless."""
    ratio = figure.ratios[place]
    if place == 0 or ratio is None or ratio <= 0:
        return ""
    if ratio >= 2:
        return f"x{ratio:.2f}"
    percent = round(100 * (ratio - 1))
    return f"{percent:+d} %" if percent else "="


def value_text(value: str | None, chars: int) -> str:
    if value is None:
        return "-"
    line = " ".join(value.split())
    return line if len(line) <= chars else f"{line[: chars - 1]}…"


def _cells(figure: ComparedFigure) -> Sequence[str]:
    cells = []
    for place in range(len(figure.values)):
        ratio = ratio_text(figure, place)
        text = figure_text(figure, place)
        unit = f" {figure.unit}" if figure.unit in ("ms", "%") and text != "-" else ""
        cells.append(f"{text}{unit}" + (f"  {ratio:>6}" if ratio else ""))
    return cells
