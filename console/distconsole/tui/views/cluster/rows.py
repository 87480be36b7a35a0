"""Hosts and GPUs as rows of their tables and as curves; a silent host greys out with its age."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import UNSET
from rich.text import Text

from distconsole.formats.figures import bytes_text, number_text
from distconsole.model.names import count_text
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.time_text import span_text
from distconsole.runs.conditions.load_fields import LoadRow
from distconsole.runs.figures import GPU, GPU_FIGURES
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.text.lists import GPU_COLUMNS as SHELL_GPU_COLUMNS
from distconsole.text.lists import NODE_COLUMNS, gpu_number
from distconsole.text.tables import Column
from distconsole.tui.view_models.hosts import (
    EACH_SECONDS,
    KEPT,
    LoadModel,
    Recent,
    percent_of,
    sum_of,
)
from distconsole.tui.widgets.bars import level_bar, spark_text
from distconsole.tui.widgets.curves import Curve, PlotData, mean_of

SCALE, RECENT_TITLE, SPARK_CELLS = "0──50──100", "last 5 min", 15
"""Heading of a bar of percent, of the same width; heading and cells of five minutes."""


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host with its newest samples, their age, and the error of a lost connection."""

    name: str
    node: NodeSample | None
    age_seconds: float | None
    lost: str | None
    gpus: tuple[GpuSample, ...]
    recent: Callable[[], Sequence[float | None]] | None = None
    """Its processors' use in the last minutes."""

    @property
    def stale(self) -> bool:
        return self.lost is not None or (self.age_seconds or 0.0) > FRESH_SECONDS

    @property
    def gpu_use(self) -> float | None:
        return _mean([gpu.util for gpu in self.gpus])

    @property
    def gpu_memory(self) -> float | None:
        return _mean([percent_of(gpu.mem_used, gpu.mem_total) for gpu in self.gpus])


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, or a slice of one; or a group, with its name for the host and its count for the number."""

    sample: GpuSample
    stale: bool
    head: bool = False
    other: bool = False
    """Used by another user."""
    recent: Callable[[], Sequence[float | None]] | None = None
    """Its use in the last minutes."""

    @property
    def memory_errors(self) -> int:
        errors = GPU["ecc"].value(self.sample)
        return int(errors) if isinstance(errors, int | float) else 0


def _host_state(row: HostRow) -> Text:
    age = span_text(row.age_seconds) if row.age_seconds is not None else ""
    if row.lost is not None:
        # First for how long: the reason may be cut.
        return Text(f"✗ {age}: {row.lost}" if age else f"✗ {row.lost}", style="bad")
    if row.stale:
        return Text(f"? silent for {age}", style="warn")
    if row.node is not None:
        return Text("● connected", style="good")
    return Text("… connecting", style="faint")


def _host_text(row: HostRow, text: str) -> Text:
    return Text(text, style="faint" if row.stale else "")


def _bar(percent: float | None, row: HostRow | GpuRow) -> Text:
    bar = level_bar(percent, len(SCALE))
    return Text(bar.plain, style="faint") if row.stale else bar


def _spark(row: HostRow | GpuRow, cells: int = SPARK_CELLS) -> Text:
    """Return the last minutes; a silent host has only those before its silence."""
    values = () if row.recent is None else row.recent()
    return Text(spark_text(values, cells, 100.0), style="curve")


def _gpu_use(row: HostRow) -> Text:
    mean = "" if row.gpu_use is None else f" {row.gpu_use:.0f}%"
    return _host_text(row, f"{len(row.gpus)} at{mean}" if row.gpus else "-")


def _node_column(column: Column[NodeSample]) -> Column[HostRow]:
    def cell(row: HostRow) -> Text:
        return _host_text(row, "" if row.node is None else str(column.cell(row.node)))

    return column.adapt(cell)


_CPU, _LOAD, _MEMORY, *_OTHERS = map(_node_column, NODE_COLUMNS)
HOST_COLUMNS: list[Column[HostRow]] = [
    Column("host", 14, lambda row: _host_text(row, row.name), sort="host", middle=True),
    Column(SCALE, len(SCALE), lambda row: _bar(row.node.cpu if row.node else None, row), 3),
    _CPU,
    Column(RECENT_TITLE, SPARK_CELLS, _spark, 7, fill=_spark),
    *(_LOAD, _MEMORY),
    Column("gpus", 9, _gpu_use, 2, True),
    *_OTHERS,
    Column("state", 22, _host_state, wide=40),
]


def _gpu_text(row: GpuRow, text: str) -> Text:
    return Text(text, style="strong" if row.head else "faint" if row.stale else "")


def _gpu_name(row: GpuRow) -> Text:
    if row.head:
        return _gpu_text(row, f"x{row.sample.gpu}")
    number = gpu_number(row.sample)
    return Text(f"!{number}", style="bad") if row.other else _gpu_text(row, number)


def _notes(row: GpuRow) -> Text:
    """Troubles of a GPU: memory errors, foreign processes, and causes of throttling."""
    notes: list[tuple[str, str]] = []
    gpu = row.sample
    if row.memory_errors and not row.head:
        notes.append((count_text(row.memory_errors, "ECC error"), "bad"))
    for process in gpu.strangers:
        pid, _, rest = process.partition(" ")
        # The owner first: the end may be cut.
        notes.append((f"also {rest} {pid}" if rest else f"also {pid}", "bad"))
    if gpu.throttle:
        notes.append((f"throttled: {','.join(gpu.throttle)}", "warn"))
    return Text(", ").join(Text(words, style=style) for words, style in notes)


def _gpu_column(column: Column[GpuSample]) -> Column[GpuRow]:
    def cell(row: GpuRow) -> Text:
        text = str(column.cell(row.sample))
        if column.sort == "ecc":
            return Text(text, style="bad" if row.memory_errors else "faint")
        return _gpu_text(row, text)

    return column.adapt(cell)


_NAME, _UTIL, *_FIGURES = map(_gpu_column, SHELL_GPU_COLUMNS)
GPU_COLUMNS: list[Column[GpuRow]] = [
    Column("host", 12, lambda row: _gpu_text(row, row.sample.host), sort="host"),
    Column("gpu", 5, _gpu_name, right=True, sort="gpu"),
    _NAME,
    Column(SCALE, len(SCALE), lambda row: _bar(row.sample.util, row), 4),
    _UTIL,
    Column(RECENT_TITLE, SPARK_CELLS, _spark, 7, fill=_spark),
    *_FIGURES,
    Column("notes", 20, _notes, need=2, wide=40),
]


RARE: Mapping[str, Callable[[GpuSample], bool]] = {
    "nvlink/s": lambda gpu: gpu.nvlink_rx_s is not None,
    "ecc": lambda gpu: GPU["ecc"].value(gpu) is not None,
    "rank": lambda gpu: gpu.rank not in (None, UNSET),
}
"""Columns that are empty for most GPUs, and a test if one has a value."""


def gpu_key(row: GpuRow) -> tuple[object, ...]:
    gpu = row.sample
    return (row.head, gpu.host, gpu.uuid or gpu.gpu, gpu.mig)


def group_head(name: str, rows: Sequence[LoadRow]) -> GpuSample:
    """Return a group as one GPU: means of use, sums of memory and power, the hottest."""
    gpus = [row.gpu for row in rows if row.gpu is not None]
    return msgspec.structs.replace(
        gpus[0],
        host=name,
        gpu=len(gpus),
        name="",
        uuid="",
        nvlink_rx_s=None,
        mig=None,
        throttle=(),
        strangers=(),
        rank=UNSET,
        **{figure.field: figure.joined(gpus) for figure in GPU_FIGURES if figure.together},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def host_rows(load: LoadModel, names: tuple[str, ...], now: float) -> list[HostRow]:
    gpus: dict[str, list[GpuSample]] = {}
    for (host, *_), gpu in sorted(load.gpus.items(), key=lambda item: (item[1].gpu, item[0])):
        gpus.setdefault(host, []).append(gpu)
    known = dict.fromkeys((*names, *load.status, *load.nodes, *gpus))
    return [
        HostRow(
            name,
            load.nodes.get(name),
            now - load.seen_at[name] if name in load.seen_at else None,
            load.lost_because(name),
            tuple(gpus.get(name, ())),
            _recent(load.cpu.get(name), now),
        )
        for name in known
    ]


def load_rows(rows: list[HostRow], me: tuple[str, ...]) -> list[LoadRow]:
    found: list[LoadRow] = []
    for row in rows:
        connected = row.node is not None and not row.stale
        gpus: tuple[GpuSample | None, ...] = row.gpus or (None,)
        found += [LoadRow(row.name, row.node, gpu, connected, row.age_seconds, me) for gpu in gpus]
    return found


def gpu_row(row: LoadRow, silent: set[str], load: LoadModel, now: float) -> GpuRow:
    assert row.gpu is not None
    other = any(user not in row.me for user in row.users or ()) if row.me else False
    recent = _recent(load.use.get(row.gpu.key), now)
    return GpuRow(row.gpu, row.host in silent, other=other, recent=recent)


def _recent(kept: Recent | None, now: float) -> Callable[[], Sequence[float | None]] | None:
    """Return a call for the last minutes, without the mean that still changes."""
    return None if kept is None else partial(kept.until, int(now // EACH_SECONDS) - 1)


FEW = (("●", "curve"), ("■", "data"), ("▲", "forward"), ("◆", "optimizer"))
"""Marks and styles of the curves of a few hosts; more hosts share a mean, with a band over all."""
GAP = 2
"""More missing means than these make a gap: one falls out if samples come seldom."""
PLOTS = 6
Point = tuple[float, float, float]
"""The value, the lowest and the highest host."""
Kind = tuple[str, Mapping[Any, Recent], list[float | None]]
"""A kind of plot: its title, its history by host, and the present figure of each host."""


def load_kinds(load: LoadModel, rows: Sequence[HostRow]) -> list[Kind]:
    """Return the plottable figures of ``rows``, the most wanted first; a past run keeps none."""

    def of(get: Callable[[NodeSample], float | None]) -> list[float | None]:
        return [None if row.node is None else get(row.node) for row in rows]

    kinds: list[Kind] = [
        ("GPU %", load.use, [row.gpu_use for row in rows]),
        ("CPU %", load.cpu, of(lambda node: node.cpu)),
        ("Network, bytes/s", load.net, of(lambda node: sum_of(node.net_rx_s, node.net_tx_s))),
        ("GPU memory %", load.gpu_memory, [row.gpu_memory for row in rows]),
        ("Memory %", load.memory, of(lambda node: percent_of(node.mem_used, node.mem_total))),
        ("Disk, bytes/s", load.disk, of(lambda node: sum_of(node.disk_read_s, node.disk_write_s))),
    ]
    return [kind for kind in kinds if any(row.name in kind[1] for row in rows)]


def load_plots(
    load: LoadModel,
    kinds: Sequence[Kind],
    rows: Sequence[HostRow],
    now: float,
    before: Mapping[str, PlotData],
) -> list[PlotData]:
    """Return the plots of ``rows`` at ``now`` (monotonic seconds), one for each of ``kinds``.

    ``before`` are the drawn plots by key: their curves stay until the next mean.
    """
    place = int(now // EACH_SECONDS)
    found = []
    for title, kept, figures in kinds:
        mine = [row.name for row in rows if row.name in kept]
        of_now = [
            None if row.stale else figure
            for row, figure in zip(rows, figures, strict=True)
            if row.name in kept
        ]
        key = f"{title} {id(load)} {place} {' '.join(mine)}"
        curves = before[key].curves if key in before else None
        curves = curves or _curves([kept[name].until(place) for name in mine])
        found.append(_plot(title, dict(zip(mine, of_now, strict=True)), curves, key))
    return found


WAYS = {"Network, bytes/s": "in + out  ", "Disk, bytes/s": "read + written  "}
"""Title -> the parts of its sum."""


def _plot(
    title: str, figures: Mapping[str, float | None], curves: tuple[Curve, ...], key: str
) -> PlotData:
    percent = title.endswith("%")
    text: Callable[[float], str] = number_text if percent else bytes_text
    known = [value for value in figures.values() if value is not None]
    said = [(f"mean {text(mean_of(known))}" if known else "–", "curve")]
    way = WAYS.get(title, "")
    legend = f"{way}━ mean  ░ lowest to highest host"
    if len(figures) <= len(FEW):
        said, legend = [], f"{way}last 5 min"
        for (mark, style), (name, value) in zip(FEW, figures.items(), strict=False):
            said.append((f"{mark} {name} {'–' if value is None else text(value)}", style))
    return PlotData(
        title,
        curves,
        tuple(said),
        since=-KEPT * EACH_SECONDS,
        until=0.0,
        reach=100.0 if percent else None,
        zero=True,
        legend=legend,
        key=key,
    )


def _curves(rows: Sequence[Sequence[float | None]]) -> tuple[Curve, ...]:
    if len(rows) > len(FEW):
        return (_curve([_point(values) for values in zip(*rows, strict=True)], "", "curve"),)
    return tuple(
        _curve([_point([value]) for value in row], mark, style)
        for (mark, style), row in zip(FEW, rows, strict=False)
    )


def _point(values: Sequence[float | None]) -> Point | None:
    known = [value for value in values if value is not None]
    return (mean_of(known), min(known), max(known)) if known else None


def _curve(points: Sequence[Point | None], mark: str, style: str) -> Curve:
    there = [(place, point) for place, point in enumerate(points) if point is not None]
    xs = [(place + 1 - KEPT) * EACH_SECONDS for place, _ in there]
    gaps = [(a, b) for a, b in pairwise(xs) if b - a > GAP * EACH_SECONDS]
    values, lows, highs = ([point[at] for _, point in there] for at in range(3))
    return Curve(xs, values, lows, highs, (), gaps, mark, style)
