"""Words about a run's lines: up to date or not, how many errors, from which ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding
from distconsole.model.time_text import clock_text, span_text
from distconsole.runs.logs.buffer import LogBuffer, Speaker
from distconsole.runs.logs.counts import LogCounts, Pace
from distconsole.runs.logs.fold import Row
from distconsole.runs.logs.levels import Level
from distconsole.runs.logs.rows import LogRows
from distconsole.tui.widgets.curves import Curve, PlotData

FLOOD_LINES_S = 1000
"""Lines a second from which their source is named."""
BEHIND_SECONDS = 2.0
MISSING = ("run.output_dropped", "run.output_left_out")
"""Findings of lines that a host did not keep, or that came too fast to show."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The reader's place in the log, and facts about its lines.

    Attributes:
        over: The run has ended.
        past: Number of rows at a chosen past moment; None for now.
        row: The reader's row; None at the end, where new lines follow.
        missing: Words about lines that are not here.
    """

    rows: LogRows
    pace: Pace
    lines: str
    over: bool = False
    past: int | None = None
    row: Row | None = None
    missing: str = ""


def reading_verdict(at: Reading) -> tuple[str, str, str]:
    """Return tone, mark and words: up to date or not, and how bad the lines are."""
    book = at.rows.book
    tone, mark, sentence = _state(at, book)
    if missing := at.missing or (f"older lines are gone: {book.failure}" if book.failure else ""):
        return "warn", "▲", f"{sentence}; {missing}"
    return tone, mark, sentence


def missing_text(findings: Sequence[RunFinding]) -> str:
    """Return the last report of lines of the run that are not here."""
    said = (each.summary for each in reversed(findings) if each.check in MISSING)
    return next(said, "")


def _state(at: Reading, book: LogBuffer) -> tuple[str, str, str]:
    rows = at.rows
    read, newest = book.get(rows.taken - 1), book.get(len(book) - 1)
    share = f"{100 * rows.taken // max(1, len(book))} % read"
    flood = "" if at.over else flood_text(at.pace, book.speakers)
    bad = book.counts.by_level[Level.ERROR]
    said = ", ".join(filter(None, [at.lines, errors_text(rows), flood]))
    if at.past is not None:
        return "note", "‖", f"PAST  {at.past:,} of {len(rows):,} rows by then"
    if read is None or newest is None:
        return "note", "…", "NO LINES" if at.over else "NO LINES YET"
    late = newest.t - read.t
    if late >= BEHIND_SECONDS and not at.over:
        upto = f"shown up to {clock_text(read.t)} ({span_text(late)} behind, {share})"
        return "warn", "▲", "BEHIND  " + "; ".join(filter(None, [flood, upto]))
    if rows.taken < len(book):
        return "note", "…", f"READING  {share}, {said}"
    if at.row is not None:
        return "note", "‖", f"AT {clock_text(at.row.t, tenths=True)}  {_place(at.row, book)}{said}"
    if at.over:
        return "bad" if bad else "note", "■", f"ENDED  {said}"
    return "warn" if bad else "good", "●", f"FOLLOWING  {said}"


def _place(row: Row, book: LogBuffer) -> str:
    line = book.get(row.line)
    if line is None:
        return ""
    stream = "stderr" if line.err else "stdout"
    return f"{_name(book.speakers[line.speaker])}, {stream}, line {row.line + 1:,}; "


def _name(speaker: Speaker) -> str:
    return speaker.host if speaker.rank is None else f"rank {speaker.rank}"


def flood_text(pace: Pace, speakers: Sequence[Speaker]) -> str:
    """Name the source of too many lines to read; empty if the rate is low."""
    if pace.lines_s < FLOOD_LINES_S:
        return ""
    who = "all print" if pace.most is None else f"{_name(speakers[pace.most])} prints"
    return f"{who} {pace.lines_s:,.0f} lines/s"


def errors_text(rows: LogRows) -> str:
    """Return the numbers of errors and warnings, the first error's rank, and a note if the filter hides it."""
    counts = rows.book.counts
    errors, warnings = (counts.by_level[level] for level in (Level.ERROR, Level.WARN))
    said = count_text(errors, "error") if errors else "no errors"
    if errors:
        hidden = ", hidden by the filter" if rows.hides_first_error else ""
        said += f" ({'first ' if errors > 1 else ''}of {first_error_text(rows)}{hidden})"
    return f"{said}, {count_text(warnings, 'warning')}" if warnings else said


def first_error_text(rows: LogRows) -> str:
    """Return the rank of the first error, hidden ones included."""
    _, speaker = rows.book.counts.first_error
    return _name(rows.book.speakers[speaker])


def rate_plot(counts: LogCounts, whole: int, said: str, key: str) -> PlotData:
    """Return the lines a second, the present rate in words, and the times of errors, in the first ``whole`` bins."""
    seconds, lines, errors = counts.bins
    xs, rates = [at * seconds for at in range(len(lines))], [n / seconds for n in lines]
    xs, rates = xs[:whole], rates[:whole]
    if whole > len(xs):  # nothing was printed since
        xs, rates = [*xs, len(xs) * seconds, whole * seconds], [*rates, 0.0, 0.0]
    return PlotData(
        "Lines over time",
        (Curve(xs, rates, [0.0] * len(xs), rates),),
        ((said, ""),) if said else (),
        zero=True,
        legend="lines per second  ✗ errors  time since the first line",
        key=key,
        marks=tuple(at * seconds for at, n in enumerate(errors) if n),
    )
