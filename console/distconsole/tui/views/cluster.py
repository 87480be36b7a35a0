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

from distconsole.model.names import count_text, join_some
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.time_text import span_text
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.text.lists import GPU_COLUMNS as SHELL_GPU_COLUMNS
from distconsole.text.lists import NODE_COLUMNS, gpu_number
from distconsole.text.tables import Column
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.hosts import LoadModel
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.bars import level_bar
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import Verdict
from distconsole.tui.widgets.panel import Panel

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
        return Text(f"? silent for {age}", style="warn")
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
    Column("host", 14, lambda row: _host_text(row, row.name), sort="host", middle=True),
    Column("cpu", 10, _cpu_bar, need=3),
    *(_CPU, _LOAD, _MEMORY),
    Column("gpus", 9, _gpu_use, 2, True),
    *_OTHERS,
    Column("state", 22, _host_state),
]


def _gpu_text(row: GpuRow, text: str) -> Text:
    return Text(text, style="strong" if row.head else "faint" if row.stale else "")


def _gpu_bar(row: GpuRow, cells: int = 10) -> Text:
    bar = level_bar(row.sample.util, cells)
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
    Column("use", 10, _gpu_bar, need=4, fill=_gpu_bar),
    *_FIGURES,
    Column("notes", 12, _notes, need=2),
]


HOST_KEYS = "s sort · f filter · g group · c check this host"


class ClusterView(OrderedView[LoadRow]):
    """Hosts above, GPUs below, where there are any."""

    DEFAULT_CSS = """
    ClusterView > #hosts-panel { height: 1fr; }
    ClusterView > #gpus-panel { height: 2fr; }
    ClusterView LineTable { height: 1fr; }
    """

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(LOAD_FIELDS, id)
        self.me: tuple[str, ...] = ()
        """Names of the operator; other users of a GPU are marked."""

    def compose(self) -> ComposeResult:
        yield Verdict("connecting…", id="cluster-line")
        with Panel("Hosts", keys=HOST_KEYS, legend="grey: not known now", id="hosts-panel"):
            yield LineTable(HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="hosts")
        with Panel("GPUs", id="gpus-panel"):
            yield LineTable(GPU_COLUMNS, same=_gpu_key, id="gpus")

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
        left = f"  {len(shown)} of {len(loads)}" if self.order.condition is not None else ""
        how = f"{self.order.words}{left}" if self.order.words else ""
        self.query_one("#hosts-panel", Panel).entitle(f"Hosts {len(rows):,}", how)
        self.query_one("#gpus-panel", Panel).entitle(f"GPUs {len(everything):,}")
        self.query_one("#cluster-line", Verdict).say(*_verdict(rows, everything))
        self._share_lines(len(everything), len(hosts))

    def _share_lines(self, gpus: int, hosts: int) -> None:
        """Give the hosts what they need, at most half where there are GPUs; the GPUs take the rest."""
        panel = self.query_one("#hosts-panel", Panel)
        frame = 2 if panel.framed else 1
        most = (self.size.height - 1) // 2 if gpus else self.size.height - 1
        panel.styles.height = min(frame + 1 + max(1, hosts), most) if gpus else most
        self.query_one("#gpus-panel").display = bool(gpus)

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


def _verdict(rows: list[HostRow], gpus: list[GpuRow]) -> tuple[str, str, str]:
    """Return tone, mark and words of how the hosts are, the worst first."""
    connected = sum(1 for row in rows if row.node is not None and not row.stale)
    words = f"{connected} of {count_text(len(rows), 'host')} connected"
    lost = [row.name for row in rows if row.stale]
    if lost:
        words += f", without {join_some(lost, 3)}"
    there = [row for row in gpus if not row.stale]
    others = sum(row.other for row in there)
    broken = sum(bool(row.sample.ecc_uncorrected) for row in there)
    slowed = sum(bool(row.sample.throttle) for row in there)
    words += f", !{others} used by others" if others else ""
    words += f", {broken} with ECC errors" if broken else ""
    words += f", {slowed} throttled" if slowed else ""
    busy = [row.sample.util for row in there if row.sample.util is not None]
    if there:
        use = f" at {sum(busy) / len(busy):.0f} %" if busy else ""
        words += f", {count_text(len(there), 'GPU')}{use}"
    if others or broken:
        return "bad", "✗", words
    if lost or slowed:
        return "warn", "▲", words
    return ("good", "●", words) if connected == len(rows) else ("note", "…", words)
