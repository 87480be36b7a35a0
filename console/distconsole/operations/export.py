"""``export``: a stored run as JSON lines or as a table. It writes nothing but the file asked for."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec import UNSET

from distconsole.errors import ConfigError, UnavailableError
from distconsole.model.events import (
    Event,
    GpuSample,
    Metric,
    Narration,
    NodeSample,
    PhaseReached,
    RunEvents,
    TextMade,
    Window,
)
from distconsole.model.requests import Export, ExportFormat
from distconsole.monitor.store import RunStore
from distconsole.monitor.summary import stored_events

CSV_COLUMNS = ("t", "event", "host", "rank", "gpu", "step", "name", "value")
WINDOW_NUMBERS = (
    *("steps", "skipped", "step_ms_mean", "step_ms_p95", "data_ms", "forward_ms"),
    *("backward_ms", "optimizer_ms", "samples_s", "dropped"),
)
GPU_NUMBERS = (
    *("util", "mem_used", "mem_total", "temp_c", "power_w", "sm_clock_mhz", "mem_clock_mhz"),
    *("ecc_uncorrected", "pcie_rx_s", "pcie_tx_s", "nvlink_rx_s", "nvlink_tx_s"),
)
NODE_NUMBERS = (
    *("cpu", "mem_used", "mem_total", "net_rx_s", "net_tx_s", "disk_read_s", "disk_write_s"),
    "load1",
)
METRIC_NUMBERS = ("value", "min", "max", "ranks", "samples")

Row = tuple[object, ...]


def export(request: Export, store: RunStore) -> Iterator[Event]:
    """Yield the export as text, or write it to the file asked for.

    ``jsonl`` is what ``run --json`` printed. ``csv`` is a long table of every number, one a row.

    Raises:
        RunNotFoundError: if there is no such run.
        ConfigError: if the file cannot be written.
        UnavailableError: for a format of a later version.
    """
    match request.format:
        case ExportFormat.JSONL | ExportFormat.CSV:
            pass
        case ExportFormat.TENSORBOARD | ExportFormat.PROMETHEUS:
            raise UnavailableError(
                f"--format {request.format} comes with a later version",
                "until then: --format jsonl or csv",
            )
        case _:
            assert_never(request.format)
    with store.open(store.resolve(request.run)) as run_file:
        events = stored_events(run_file)
        lines = jsonl_lines(events) if request.format is ExportFormat.JSONL else csv_lines(events)
        if request.output is None:
            for line in lines:
                yield TextMade(text=line)
            return
        count = _write(Path(request.output).expanduser(), lines)
    yield Narration(text=f"{count} lines written to {request.output}")


def jsonl_lines(events: Iterator[RunEvents]) -> Iterator[str]:
    """Yield each event as a JSON object without its line end."""
    encoder = msgspec.json.Encoder()
    for event in events:
        yield encoder.encode(event).decode()


def csv_lines(events: Iterator[RunEvents]) -> Iterator[str]:
    """Yield the header and one line for each number, without line ends (RFC 4180 quoting)."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="")
    writer.writerow(CSV_COLUMNS)
    yield buffer.getvalue()
    for event in events:
        for row in _rows(event):
            buffer.seek(0)
            buffer.truncate()
            writer.writerow(row)
            yield buffer.getvalue()


def _rows(event: RunEvents) -> Iterator[Row]:
    match event:
        case Window():
            place: Row = (event.t, "window", event.host, event.rank, "", event.step)
            yield from _numbers(place, event, WINDOW_NUMBERS)
            for name, value in event.metrics.items():
                yield (*place, name, value)
        case Metric():
            for field in METRIC_NUMBERS:
                value = getattr(event, field)
                if value is not None:
                    name = event.name if field == "value" else f"{event.name}.{field}"
                    yield (event.t, "metric", "", "", "", event.step, name, value)
        case GpuSample():
            rank = "" if event.rank is UNSET else event.rank
            place = (event.t, "gpu", event.host, rank, event.gpu, "")
            yield from _numbers(place, event, GPU_NUMBERS)
        case NodeSample():
            yield from _numbers((event.t, "node", event.host, "", "", ""), event, NODE_NUMBERS)
        case PhaseReached():
            place = (event.t, "phase", event.host, event.rank, "", "")
            yield (*place, event.phase, event.seconds)
        case _:
            return


def _numbers(place: Row, event: RunEvents, names: tuple[str, ...]) -> Iterator[Row]:
    for name in names:
        value = getattr(event, name)
        if value is not None:
            yield (*place, name, value)


def _write(path: Path, lines: Iterator[str]) -> int:
    """Write the lines aside and move them into place; return how many."""
    aside = path.with_name(f".{path.name}.part")
    count = 0
    try:
        with aside.open("w", encoding="utf-8", newline="\n") as file:
            for line in lines:
                file.write(f"{line}\n")
                count += 1
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}", "name another file"
        ) from None
    return count
