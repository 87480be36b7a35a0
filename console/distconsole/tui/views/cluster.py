"""The hosts and their GPUs as they are now; a host that fell silent greys out with its age."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import UNSET
from rich.text import Text
from textual import on
from textual.app import ComposeResult

from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.time_text import span_text
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.text.lists import GPU_COLUMNS as SHELL_GPU_COLUMNS
from distconsole.text.lists import NODE_COLUMNS, gpu_number
from distconsole.text.tables import Column, count_text
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.bars import level_bar
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Line

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host with its newest samples, how old they are, and why there is no connection to it, if there was one."""

    name: str
    node: NodeSample | None
    age_seconds: float | None
    lost: str | None
    gpus: tuple[GpuSample, ...]

    @property
    def stale(self) -> bool:
        return self.lost is not None or (self.age_seconds or 0.0) > FRESH_SECONDS


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, or a slice of one; or a group, whose name is in the place of the host and whose count in that of the number."""

    sample: GpuSample
    stale: bool
    head: bool = False
    other: bool = False
    """Somebody else uses it."""


def _host_state(row: HostRow) -> Text:
    age = span_text(row.age_seconds) if row.age_seconds is not None else ""
    if row.lost is not None:
        # First for how long: the reason may be cut.
        return Text(f"✗ {age}: {row.lost}" if age else f"✗ {row.lost}", style="bad")
    if row.stale:
        return Text(f"? silent, last seen {age} ago", style="warn")
    if row.node is not None:
        return Text("● connected", style="good")
    return Text("… connecting", style="faint")


def _host_text(row: HostRow, text: str) -> Text:
    return Text(text, style="faint" if row.stale else "")


def _cpu_bar(row: HostRow) -> Text:
    bar = level_bar(row.node.cpu if row.node else None, 10, hot=95)
    return Text(bar.plain, style="faint") if row.stale else bar


def _gpu_use(row: HostRow) -> Text:
    known = [gpu.util for gpu in row.gpus if gpu.util is not None]
    mean = f" {sum(known) / len(known):.0f}%" if known else ""
    return _host_text(row, f"{len(row.gpus)} at{mean}" if row.gpus else "-")


def _node_column(column: Column[NodeSample]) -> Column[HostRow]:
    def cell(row: HostRow) -> Text:
        return _host_text(row, "" if row.node is None else str(column.cell(row.node)))

    return column.adapt(cell)


_CPU, _LOAD, _MEMORY, *_OTHERS = map(_node_column, NODE_COLUMNS)
HOST_COLUMNS: list[Column[HostRow]] = [
    Column("host", 14, lambda row: _host_text(row, row.name), sort="host"),
    Column("cpu", 10, _cpu_bar, need=3),
    *(_CPU, _LOAD, _MEMORY),
    Column("gpus", 9, _gpu_use, 2, True),
    *_OTHERS,
    Column("state", 22, _host_state),
]


def _gpu_text(row: GpuRow, text: str) -> Text:
    return Text(text, style="strong" if row.head else "faint" if row.stale else "")


def _gpu_bar(row: GpuRow) -> Text:
    bar = level_bar(row.sample.util, 10)
    return Text(bar.plain, style="faint") if row.stale else bar


def _gpu_name(row: GpuRow) -> Text:
    if row.head:
        return _gpu_text(row, f"x{row.sample.gpu}")
    number = gpu_number(row.sample)
    return Text(f"!{number}", style="bad") if row.other else _gpu_text(row, number)


def _notes(row: GpuRow) -> Text:
    """What is wrong with it: its memory, who else uses it, and why it is slowed down."""
    notes: list[tuple[str, str]] = []
    gpu = row.sample
    if gpu.ecc_uncorrected and not row.head:
        notes.append((count_text(gpu.ecc_uncorrected, "ECC error"), "bad"))
    notes += [(f"also {_stranger(each)}", "bad") for each in gpu.strangers]
    if gpu.throttle:
        notes.append((f"throttled: {','.join(gpu.throttle)}", "warn"))
    return Text(", ").join(Text(words, style=style) for words, style in notes)


def _stranger(process: str) -> str:
    """Return a process with who it belongs to first: the rest may be cut."""
    pid, _, rest = process.partition(" ")
    return f"{rest} {pid}" if rest else pid


def _gpu_column(column: Column[GpuSample]) -> Column[GpuRow]:
    def cell(row: GpuRow) -> Text:
        text = str(column.cell(row.sample))
        if column.sort == "ecc":
            return Text(text, style="bad" if row.sample.ecc_uncorrected else "faint")
        return _gpu_text(row, text)

    return column.adapt(cell)


_NAME, *_FIGURES = map(_gpu_column, SHELL_GPU_COLUMNS)
GPU_COLUMNS: list[Column[GpuRow]] = [
    Column("host", 12, lambda row: _gpu_text(row, row.sample.host), sort="host"),
    Column("gpu", 5, _gpu_name, right=True, sort="gpu"),
    _NAME,
    Column("use", 10, _gpu_bar, need=4),
    *_FIGURES,
    Column("notes", 12, _notes, need=2),
]


class ClusterView(OrderedView[LoadRow]):
    """Hosts above, GPUs below."""

    DEFAULT_CSS = """
    ClusterView > #cluster-line { text-style: bold; }
    ClusterView > #hosts { max-height: 50%; }
    ClusterView > #gpus { height: 1fr; border-top: solid $panel; }
    """

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(LOAD_FIELDS, id)
        self.me: tuple[str, ...] = ()
        """Names of the operator; other users of a GPU are marked."""

    def compose(self) -> ComposeResult:
        yield Line("connecting…", id="cluster-line")
        yield LineTable(HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="hosts")
        yield LineTable(GPU_COLUMNS, same=_gpu_key, empty="no GPUs seen on these hosts", id="gpus")

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        super().sort("" if name == "host" else name, downwards=downwards)

    def host_under_cursor(self) -> str:
        row: HostRow | None = self.query_one("#hosts", LineTable).row_under_cursor()
        return "" if row is None else row.name

    def draw(self, task: RequestTask, names: tuple[str, ...], now: float) -> None:
        """Show what ``task`` knows of the hosts called ``names`` at ``now`` (monotonic seconds)."""
        with task.lock:
            rows = _host_rows(task.load, names, now)
        loads = _load_rows(rows, self.me)
        shown = self.order.shown(loads)
        hosts = {row.name: row for row in rows}
        self.query_one("#hosts", LineTable).show(
            [hosts[name] for name in dict.fromkeys(row.host for row in shown)]
        )
        silent = {row.name for row in rows if row.stale}
        gpus: list[GpuRow] = []
        for name, members in self.order.grouped([row for row in shown if row.gpu is not None]):
            if name:
                gpus.append(GpuRow(_group_head(name, members), stale=False, head=True))
            gpus += [_gpu_row(row, silent) for row in members]
        self.query_one("#gpus", LineTable).show(gpus)
        everything = [_gpu_row(row, silent) for row in loads if row.gpu is not None]
        line = _line(rows, everything)
        if self.order.words:
            left = f"  {len(shown)} of {len(loads)}" if self.order.condition is not None else ""
            line = Text.assemble((f"{self.order.words}{left}  ", "note"), line)
        self.query_one("#cluster-line", Line).show(line)

    @on(LineTable.Moved, "#hosts")
    def show_its_gpus(self, event: LineTable.Moved) -> None:
        row, gpus = event.table.row_under_cursor(), self.query_one("#gpus", LineTable)
        if row is None or not event.table.has_focus:
            return
        places = (place for place, gpu in enumerate(gpus.rows) if gpu.sample.host == row.name)
        gpus.cursor = next(places, gpus.cursor)


def _gpu_key(row: GpuRow) -> tuple[object, ...]:
    gpu = row.sample
    return (row.head, gpu.host, gpu.uuid or gpu.gpu, gpu.mig)


def _group_head(name: str, rows: Sequence[LoadRow]) -> GpuSample:
    """Return a group as if it was one GPU: means of use, sums of memory and power, the hottest."""
    gpus = [row.gpu for row in rows if row.gpu is not None]
    return msgspec.structs.replace(
        gpus[0],
        host=name,
        gpu=len(gpus),
        name="",
        uuid="",
        util=_mean([gpu.util for gpu in gpus]),
        mem_used=_sum([gpu.mem_used for gpu in gpus]),
        mem_total=_sum([gpu.mem_total for gpu in gpus]),
        temp_c=max((gpu.temp_c for gpu in gpus if gpu.temp_c is not None), default=None),
        power_w=_sum([gpu.power_w for gpu in gpus]),
        sm_clock_mhz=_mean([gpu.sm_clock_mhz for gpu in gpus]),
        ecc_uncorrected=_sum([gpu.ecc_uncorrected for gpu in gpus]),
        nvlink_rx_s=None,
        mig=None,
        throttle=(),
        strangers=(),
        rank=UNSET,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _sum(values: Sequence[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known[1:], known[0]) if known else None


def _host_rows(load: LoadModel, names: tuple[str, ...], now: float) -> list[HostRow]:
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
        )
        for name in known
    ]


def load_rows_of(
    load: LoadModel, names: tuple[str, ...], now: float, me: tuple[str, ...]
) -> list[LoadRow]:
    """Return what conditions are asked of, for the hosts called ``names`` and all others known."""
    return _load_rows(_host_rows(load, names, now), me)


def _load_rows(rows: list[HostRow], me: tuple[str, ...]) -> list[LoadRow]:
    found: list[LoadRow] = []
    for row in rows:
        connected = row.node is not None and not row.stale
        gpus: tuple[GpuSample | None, ...] = row.gpus or (None,)
        found += [LoadRow(row.name, row.node, gpu, connected, row.age_seconds, me) for gpu in gpus]
    return found


def _gpu_row(row: LoadRow, silent: set[str]) -> GpuRow:
    assert row.gpu is not None
    other = any(user not in row.me for user in row.users or ()) if row.me else False
    return GpuRow(row.gpu, row.host in silent, other=other)


def _line(rows: list[HostRow], gpus: list[GpuRow]) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    connected = sum(1 for row in rows if row.node is not None and not row.stale)
    words = f"{connected} of {count_text(len(rows), 'host')} connected"
    lost = [row.name for row in rows if row.stale]
    text.append(words, style="warn" if lost else "good" if connected == len(rows) else "note")
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        text.append(f", without {', '.join(lost[:3])}{more}", style="warn")
    there = [row for row in gpus if not row.stale]
    if others := sum(row.other for row in there):
        text.append(f", !{others} used by others", style="bad")
    if broken := sum(bool(row.sample.ecc_uncorrected) for row in there):
        text.append(f", {broken} with ECC errors", style="bad")
    if slowed := sum(bool(row.sample.throttle) for row in there):
        text.append(f", {slowed} throttled", style="warn")
    busy = [row.sample.util for row in there if row.sample.util is not None]
    if there:
        use = f" at {sum(busy) / len(busy):.0f} %" if busy else ""
        text.append(f", {count_text(len(there), 'GPU')}{use}")
    return text
