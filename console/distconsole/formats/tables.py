"""The tables that a run is written as: which rows each event makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

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
from distconsole.runs.figures import GPU_FIGURES, NODE_FIGURES
from distconsole.runs.timeline import RunTimeline

WINDOW_NUMBERS = (
    *("steps", "skipped", "step_ms_mean", "step_ms_p95", "data_ms", "forward_ms"),
    *("backward_ms", "optimizer_ms", "samples_s", "dropped"),
)
GPU_NUMBERS = tuple(figure.field for figure in GPU_FIGURES)
NODE_NUMBERS = tuple(figure.field for figure in NODE_FIGURES)
METRIC_NUMBERS = ("value", "min", "max", "ranks", "samples")
RANK_FIELDS = (
    *("host", "local_rank", "gpu", "pid", "state", "exit_code", "signal", "step", "steps"),
    *("skipped", "step_ms_run", "step_ms_mean", "step_ms_p95", "data_ms", "forward_ms"),
    *("backward_ms", "optimizer_ms", "samples_s", "gpu_util", "dropped", "last_seen"),
)

Row = tuple[object, ...]
Rows = Callable[[Any], Iterator[Row]]


class Table:
    """One table: its columns, the kinds of events that make rows, and the rows."""

    columns: tuple[str, ...]
    kinds: tuple[type[RunEvents], ...]

    def rows(self, event: RunEvents) -> Iterator[Row]:
        """Yield the rows of an event."""
        raise NotImplementedError

    def ending(self) -> Iterator[Row]:
        """Yield the rows that are known only after the last event."""
        return iter(())


class EventTable(Table):
    """A table whose rows each come from one event."""

    def __init__(
        self, columns: tuple[str, ...], kinds: tuple[type[RunEvents], ...], rows: Rows
    ) -> None:
        self.columns, self.kinds, self._rows = columns, kinds, rows

    def rows(self, event: RunEvents) -> Iterator[Row]:
        """Yield the rows of an event."""
        return self._rows(event)


class RanksTable(Table):
    """One row a rank: what it had come to at the end of the run, or so far."""

    columns = ("rank", *RANK_FIELDS)
    kinds: tuple[type[RunEvents], ...] = RunEvents.__args__

    def __init__(self) -> None:
        self._timeline = RunTimeline()

    def rows(self, event: RunEvents) -> Iterator[Row]:
        """Take the event; a rank's row is known at the end."""
        if not isinstance(event, LogLine):
            self._timeline.apply(event)
        return iter(())

    def ending(self) -> Iterator[Row]:
        """Yield the ranks in order."""
        for rank, view in sorted(self._timeline.ranks.items()):
            yield (rank, *(_cell(getattr(view, field)) for field in RANK_FIELDS))


def make_table(name: ExportTable) -> Table:
    """Return an empty table."""
    return RanksTable() if name is ExportTable.RANKS else _TABLES[name]


def _metrics(event: Metric) -> Iterator[Row]:
    yield (event.t, event.step, event.name, *_values(event, METRIC_NUMBERS))


def _windows(event: Window) -> Iterator[Row]:
    yield (event.t, event.host, event.rank, event.step, *_values(event, WINDOW_NUMBERS))


def _rank_metrics(event: Window) -> Iterator[Row]:
    for name, value in event.metrics.items():
        yield event.t, event.host, event.rank, event.step, name, value


def _gpus(event: GpuSample) -> Iterator[Row]:
    place = (event.t, event.host, event.gpu, _cell(event.mig), _cell(event.rank))
    yield (*place, event.name, event.uuid, *_values(event, GPU_NUMBERS))


def _nodes(event: NodeSample) -> Iterator[Row]:
    yield (event.t, event.host, *_values(event, NODE_NUMBERS))


def _phases(event: PhaseReached) -> Iterator[Row]:
    yield event.t, event.host, event.rank, event.phase, event.seconds


def _findings(event: RunFinding) -> Iterator[Row]:
    hosts = " ".join(event.hosts)
    words = (event.summary, event.seen, event.expected, event.hint)
    yield (event.t, event.severity.value, event.check, _cell(event.rank), hosts, *words)


def _logs(event: LogLine) -> Iterator[Row]:
    if not event.transient:
        yield event.t, event.host, _cell(event.rank), event.stream, event.line


def _numbers(event: Window | Metric | GpuSample | NodeSample | PhaseReached) -> Iterator[Row]:
    """Yield every number of an event as a row of its own."""
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
            place = (event.t, "gpu", event.host, _cell(event.rank), event.gpu, "")
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


def _values(event: RunEvents, names: tuple[str, ...]) -> Iterator[object]:
    return (_cell(getattr(event, name)) for name in names)


def _cell(value: object) -> object:
    return "" if value is None or value is UNSET else value


_TABLES: dict[ExportTable, Table] = {
    ExportTable.METRICS: EventTable(("t", "step", "name", *METRIC_NUMBERS), (Metric,), _metrics),
    ExportTable.WINDOWS: EventTable(
        ("t", "host", "rank", "step", *WINDOW_NUMBERS), (Window,), _windows
    ),
    ExportTable.RANK_METRICS: EventTable(
        ("t", "host", "rank", "step", "name", "value"), (Window,), _rank_metrics
    ),
    ExportTable.GPUS: EventTable(
        ("t", "host", "gpu", "mig", "rank", "name", "uuid", *GPU_NUMBERS), (GpuSample,), _gpus
    ),
    ExportTable.NODES: EventTable(("t", "host", *NODE_NUMBERS), (NodeSample,), _nodes),
    ExportTable.PHASES: EventTable(
        ("t", "host", "rank", "phase", "seconds"), (PhaseReached,), _phases
    ),
    ExportTable.FINDINGS: EventTable(
        ("t", "severity", "check", "rank", "hosts", "summary", "seen", "expected", "hint"),
        (RunFinding,),
        _findings,
    ),
    ExportTable.LOGS: EventTable(("t", "host", "rank", "stream", "line"), (LogLine,), _logs),
    ExportTable.NUMBERS: EventTable(
        ("t", "event", "host", "rank", "gpu", "step", "name", "value"),
        (Window, Metric, GpuSample, NodeSample, PhaseReached),
        _numbers,
    ),
}
