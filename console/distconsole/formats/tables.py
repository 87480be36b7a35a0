"""A run as lines of text: JSON lines, and the tables of CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET

from distconsole.model.requests import ExportTable
from distconsole.model.run_events import (
    GpuSample,
    LogLine,
    Metric,
    NodeSample,
    PhaseReached,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.runs.detectors.stragglers import StragglerWatch
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES, PARTS
from distconsole.runs.timeline import RunTimeline

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""With these a spreadsheet takes a cell's text for a formula."""

WINDOW_NUMBERS = (
    *("steps", "skipped", "step_ms_mean", "step_ms_p95", *PARTS, "samples_s", "dropped"),
)
GPU_NUMBERS = tuple(figure.field for figure in GPU_FIGURES)
NODE_NUMBERS = tuple(figure.field for figure in NODE_FIGURES)
METRIC_NUMBERS = ("value", "min", "max", "ranks", "samples")
RANK_FIELDS = (
    *("host", "local_rank", "gpu", "pid", "state", "exit_code", "signal", "step", "steps"),
    *("skipped", "step_ms_run", "step_ms_mean", "step_ms_p95", *PARTS),
    *("samples_s", "gpu_util", "dropped", "last_seen"),
)

Row = tuple[object, ...]
Rows = Callable[[Any], Iterator[Row]]


class Table:
    """One table: its columns, the kinds of events that make rows, and the rows of an event: its fields of these names."""

    def __init__(
        self,
        columns: tuple[str, ...],
        kinds: tuple[type[RunEvents], ...],
        rows: Rows | None = None,
    ) -> None:
        self.columns, self.kinds = columns, kinds
        fields = attrgetter(*columns)
        self.rows = rows or (lambda event: iter((fields(event),)))

    def ending(self) -> Iterator[Row]:
        return iter(())


class RanksTable(Table):
    """One row a rank: its state at the end of the run, or so far."""

    columns = ("rank", *RANK_FIELDS, "own_ms_run")

    def __init__(self) -> None:
        super().__init__(self.columns, RunEvents.__args__, self._take)
        self._timeline = RunTimeline(StragglerWatch())  # no column needs them judged

    def ending(self) -> Iterator[Row]:
        own = self._timeline.own_times
        for rank, view in sorted(self._timeline.ranks.items()):
            parts = dict(zip(PARTS, view.parts_ms, strict=True))
            fields = (parts[f] if f in parts else getattr(view, f) for f in RANK_FIELDS)
            yield (rank, *fields, own.get(rank))

    def _take(self, event: RunEvents) -> Iterator[Row]:
        if not isinstance(event, LogLine):
            self._timeline.apply(event)
        return iter(())


class Lines:
    """Events of a run in order, as lines without their ends."""

    def beginning(self) -> Iterator[str]:
        return iter(())

    def of(self, event: RunEvents) -> Iterator[str]:
        raise NotImplementedError

    def ending(self) -> Iterator[str]:
        return iter(())


class JsonLines(Lines):
    """Every event as ``run --json`` prints it."""

    def of(self, event: RunEvents) -> Iterator[str]:
        yield msgspec.json.encode(event).decode()


class CsvLines(Lines):
    """One table as RFC 4180 has it; text that a spreadsheet would compute is led by an apostrophe."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._buffer = io.StringIO()
        self._writer = csv.writer(self._buffer, lineterminator="")

    def beginning(self) -> Iterator[str]:
        yield self._line(self._table.columns)

    def of(self, event: RunEvents) -> Iterator[str]:
        if isinstance(event, self._table.kinds):
            yield from map(self._line, self._table.rows(event))

    def ending(self) -> Iterator[str]:
        yield from map(self._line, self._table.ending())

    def _line(self, row: Row) -> str:
        self._buffer.seek(0)
        self._buffer.truncate()
        self._writer.writerow(map(_plain, row))
        return self._buffer.getvalue()


def _plain(cell: object) -> object:
    if isinstance(cell, str) and cell.startswith(FORMULA_STARTS):
        return f"'{cell}"
    return None if cell is UNSET else cell  # which the writer leaves empty


def make_table(name: ExportTable) -> Table:
    return RanksTable() if name is ExportTable.RANKS else _TABLES[name]


def _rank_metrics(event: Window) -> Iterator[Row]:
    for name, value in event.metrics.items():
        yield event.t, event.host, event.rank, event.step, name, value


def _findings(event: RunFinding) -> Iterator[Row]:
    hosts = " ".join(event.hosts)
    words = (event.summary, event.seen, event.expected, event.hint)
    yield (event.t, event.severity.value, event.check, event.rank, hosts, *words)


def _logs(event: LogLine) -> Iterator[Row]:
    if not event.transient:
        yield event.t, event.host, event.rank, event.stream, event.line


def _numbers(event: Window | Metric | GpuSample | NodeSample | PhaseReached) -> Iterator[Row]:
    place: Row
    match event:
        case Window():
            place = (event.t, "window", event.host, event.rank, "", event.step)
            yield from _name_each(place, event, WINDOW_NUMBERS)
            for name, value in event.metrics.items():
                yield (*place, name, value)
        case Metric():
            place = (event.t, "metric", "", "", "", event.step)
            for field in METRIC_NUMBERS:
                number = getattr(event, field)
                if number is not None:
                    name = event.name if field == "value" else f"{event.name}.{field}"
                    yield (*place, name, number)
        case GpuSample():
            place = (event.t, "gpu", event.host, event.rank, event.gpu, "")
            yield from _name_each(place, event, GPU_NUMBERS)
        case NodeSample():
            yield from _name_each((event.t, "node", event.host, "", "", ""), event, NODE_NUMBERS)
        case PhaseReached():
            place = (event.t, "phase", event.host, event.rank, "", "")
            yield (*place, event.phase, event.seconds)


def _name_each(place: Row, event: RunEvents, names: tuple[str, ...]) -> Iterator[Row]:
    for name in names:
        value = getattr(event, name)
        if value is not None:
            yield (*place, name, value)


_TABLES: dict[ExportTable, Table] = {
    ExportTable.METRICS: Table(("t", "step", "name", *METRIC_NUMBERS), (Metric,)),
    ExportTable.WINDOWS: Table(("t", "host", "rank", "step", *WINDOW_NUMBERS), (Window,)),
    ExportTable.RANK_METRICS: Table(
        ("t", "host", "rank", "step", "name", "value"), (Window,), _rank_metrics
    ),
    ExportTable.GPUS: Table(
        ("t", "host", "gpu", "mig", "rank", "name", "uuid", *GPU_NUMBERS), (GpuSample,)
    ),
    ExportTable.NODES: Table(("t", "host", *NODE_NUMBERS), (NodeSample,)),
    ExportTable.PHASES: Table(("t", "host", "rank", "phase", "seconds"), (PhaseReached,)),
    ExportTable.FINDINGS: Table(
        ("t", "severity", "check", "rank", "hosts", "summary", "seen", "expected", "hint"),
        (RunFinding,),
        _findings,
    ),
    ExportTable.LOGS: Table(("t", "host", "rank", "stream", "line"), (LogLine,), _logs),
    ExportTable.NUMBERS: Table(
        ("t", "event", "host", "rank", "gpu", "step", "name", "value"),
        (Window, Metric, GpuSample, NodeSample, PhaseReached),
        _numbers,
    ),
}
