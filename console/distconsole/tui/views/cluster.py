"""The hosts and their GPUs as they are now; a host that fell silent greys out with its age."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import UNSET
from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical

from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.model.time_text import span_text
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.text.tables import bytes_text, number_text
from distconsole.tui.later import RunLine
from distconsole.tui.tasks import RequestTask
from distconsole.tui.view_models.hosts import LoadPicture
from distconsole.tui.views.load_order import head_of
from distconsole.tui.views.row_order import RowOrder
from distconsole.tui.widgets.bars import level_bar
from distconsole.tui.widgets.line_table import Column, LineTable
from distconsole.tui.widgets.lines import Words


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host with what is known of it.

    Attributes:
        name: Its name.
        node: Its newest sample.
        age_seconds: How old that is.
        lost: Why there is no connection to it; None if there is one, or none yet.
        gpus: Its GPUs.
    """

    name: str
    node: NodeSample | None
    age_seconds: float | None
    lost: str | None
    gpus: tuple[GpuSample, ...]

    @property
    def stale(self) -> bool:
        """Whether what is shown is old."""
        return self.lost is not None or (self.age_seconds or 0.0) > FRESH_SECONDS


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU, or a slice of one.

    Attributes:
        stale: Its host fell silent.
        head: It stands for a group: the host is its name, the number how many GPUs there are.
        other: Somebody else uses it.
    """

    sample: GpuSample
    stale: bool
    head: bool = False
    other: bool = False


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


def _of_host(row: HostRow, text: str) -> Text:
    return Text(text, style="faint" if row.stale else "")


def _memory(used: int | None, total: int | None) -> str:
    return "" if used is None or not total else f"{bytes_text(used)}/{bytes_text(total)}"


def _cpu_bar(row: HostRow) -> Text:
    bar = level_bar(row.node.cpu if row.node else None, 10, hot=95)
    return Text(bar.plain, style="faint") if row.stale else bar


def _gpu_use(row: HostRow) -> Text:
    known = [gpu.util for gpu in row.gpus if gpu.util is not None]
    mean = f" {sum(known) / len(known):.0f}%" if known else ""
    return _of_host(row, f"{len(row.gpus)} at{mean}" if row.gpus else "-")


HOST_COLUMNS: list[Column[HostRow]] = [
    Column("host", 14, lambda row: _of_host(row, row.name), sort="host"),
    Column("cpu", 10, _cpu_bar, need=3),
    Column(
        "cpu%",
        5,
        lambda row: _of_host(row, number_text(row.node.cpu) if row.node else ""),
        right=True,
        sort="cpu",
    ),
    Column(
        "load",
        6,
        lambda row: _of_host(row, number_text(row.node.load1) if row.node else ""),
        3,
        True,
        sort="load",
    ),
    Column(
        "memory",
        13,
        lambda row: _of_host(
            row, _memory(row.node.mem_used, row.node.mem_total) if row.node else ""
        ),
        1,
        True,
        sort="ram",
    ),
    Column("gpus", 9, _gpu_use, 2, True),
    Column(
        "net in/s",
        9,
        lambda row: _of_host(row, bytes_text(row.node.net_rx_s) if row.node else ""),
        4,
        True,
        sort="net.in",
    ),
    Column(
        "out/s",
        8,
        lambda row: _of_host(row, bytes_text(row.node.net_tx_s) if row.node else ""),
        4,
        True,
        sort="net.out",
    ),
    Column(
        "disk w/s",
        8,
        lambda row: _of_host(row, bytes_text(row.node.disk_write_s) if row.node else ""),
        6,
        True,
        sort="disk.write",
    ),
    Column("state", 22, _host_state),
]


def _of_gpu(row: GpuRow, text: str) -> Text:
    return Text(text, style="strong" if row.head else "faint" if row.stale else "")


def _gpu_bar(row: GpuRow) -> Text:
    bar = level_bar(row.sample.util, 10)
    return Text(bar.plain, style="faint") if row.stale else bar


def _gpu_name(row: GpuRow) -> Text:
    gpu = row.sample
    if row.head:
        return _of_gpu(row, f"x{gpu.gpu}")
    number = str(gpu.gpu) if gpu.mig is None else f"{gpu.gpu}/{gpu.mig}"
    return Text(f"!{number}", style="bad") if row.other else _of_gpu(row, number)


def _ecc(row: GpuRow) -> Text:
    count = row.sample.ecc_uncorrected
    return Text("" if count is None else str(count), style="bad" if count else "faint")


def _traffic(row: GpuRow) -> Text:
    gpu = row.sample
    both = (gpu.nvlink_rx_s, gpu.nvlink_tx_s)
    return _of_gpu(row, "" if None in both else bytes_text(sum(each or 0.0 for each in both)))


def _notes(row: GpuRow) -> Text:
    """What is wrong with it: its memory, who else uses it, and why it is slowed down."""
    notes: list[tuple[str, str]] = []
    gpu = row.sample
    if gpu.ecc_uncorrected and not row.head:
        notes.append((_count(gpu.ecc_uncorrected, "ECC error"), "bad"))
    notes += [(f"also {_stranger(each)}", "bad") for each in gpu.strangers]
    if gpu.throttle:
        notes.append((f"throttled: {','.join(gpu.throttle)}", "warn"))
    return Text(", ").join(Text(words, style=style) for words, style in notes)


def _stranger(process: str) -> str:
    """Return a process with who it belongs to first: the rest may be cut."""
    pid, _, rest = process.partition(" ")
    return f"{rest} {pid}" if rest else pid


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' if number != 1 else ''}"


GPU_COLUMNS: list[Column[GpuRow]] = [
    Column("host", 12, lambda row: _of_gpu(row, row.sample.host), sort="host"),
    Column("gpu", 5, _gpu_name, right=True, sort="gpu"),
    Column("name", 21, lambda row: _of_gpu(row, row.sample.name), need=6, sort="name"),
    Column("use", 10, _gpu_bar, need=4),
    Column(
        "util%", 5, lambda row: _of_gpu(row, number_text(row.sample.util)), right=True, sort="util"
    ),
    Column(
        "memory",
        13,
        lambda row: _of_gpu(row, _memory(row.sample.mem_used, row.sample.mem_total)),
        1,
        True,
        sort="mem",
    ),
    Column(
        "temp", 5, lambda row: _of_gpu(row, number_text(row.sample.temp_c)), 2, True, sort="temp"
    ),
    Column(
        "power",
        6,
        lambda row: _of_gpu(row, number_text(row.sample.power_w, "W")),
        2,
        True,
        sort="power",
    ),
    Column(
        "MHz",
        5,
        lambda row: _of_gpu(row, number_text(row.sample.sm_clock_mhz)),
        4,
        True,
        sort="clock",
    ),
    Column("nvlink/s", 8, _traffic, 7, True, sort="nvlink"),
    Column("ecc", 4, _ecc, 5, True, sort="ecc"),
    Column(
        "rank",
        4,
        lambda row: _of_gpu(row, "" if row.sample.rank is UNSET else str(row.sample.rank)),
        1,
        True,
        sort="rank",
    ),
    Column("notes", 12, _notes, need=2),
]


class ClusterView(Vertical):
    """Hosts above, GPUs below."""

    DEFAULT_CSS = """
    ClusterView > #cluster-line { height: 1; padding: 0 1; text-style: bold; text-wrap: nowrap; text-overflow: ellipsis; }
    ClusterView > #hosts { max-height: 50%; }
    ClusterView > #gpus { height: 1fr; border-top: solid $panel; }
    """

    def compose(self) -> ComposeResult:
        """Both tables and a line about the whole."""
        yield Words("connecting…", id="cluster-line")
        yield LineTable(HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="hosts")
        yield LineTable(
            GPU_COLUMNS,
            same=lambda row: (
                (row.head, row.sample.host, row.sample.uuid, row.sample.mig)
                if row.head or row.sample.uuid
                else (row.sample.host, row.sample.gpu, row.sample.mig)
            ),
            empty="no GPUs seen on these hosts",
            id="gpus",
        )

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.order: RowOrder[LoadRow] = RowOrder()
        self.me: tuple[str, ...] = ()
        """Names of the operator; other users of a GPU are marked."""

    def filter(self, text: str) -> None:
        """Show only what matches ``text``; all if it is empty.

        Raises:
            UsageError: if it means nothing.
        """
        self.order = self.order.with_filter(text, LOAD_FIELDS)

    def sort(self, name: str, *, downwards: bool | None = None) -> None:
        """Order hosts and GPUs by the field called ``name``, figures downwards if not said otherwise.

        Raises:
            UsageError: if there is none.
        """
        name = "" if name == "host" else name
        self.order = self.order.with_sort(name, LOAD_FIELDS, downwards=downwards)
        for table in self.query(LineTable):
            table.to_top()

    def group(self, name: str) -> None:
        """Put GPUs with the same ``name`` together; ``none`` ends that.

        Raises:
            UsageError: if there is no such field.
        """
        self.order = self.order.with_group(name, LOAD_FIELDS)
        self.query_one("#gpus", LineTable).to_top()

    def host_under_cursor(self) -> str:
        """Return the host that keys are about; nothing where there is none."""
        row: HostRow | None = self.query_one("#hosts", LineTable).row_under_cursor()
        return "" if row is None else row.name

    @on(LineTable.SortAsked)
    def sort_rows(self, event: LineTable.SortAsked) -> None:
        """Order the rows by the heading that was clicked."""
        self.post_message(RunLine(f"sort {event.order}"))

    def draw(self, task: RequestTask, names: tuple[str, ...], now: float) -> None:
        """Show what ``task`` knows of the hosts called ``names`` at ``now`` (monotonic seconds)."""
        with task.reading():
            rows = _host_rows(task.load, names, now)
        loads = _load_rows(rows, self.me)
        for table in self.query(LineTable):
            table.filtered = self.order.condition is not None
            table.sorted_by = self.order.by.name if self.order.by is not None else ""
        shown = self.order.shown(loads)
        hosts = {row.name: row for row in rows}
        self.query_one("#hosts", LineTable).show(
            [hosts[name] for name in dict.fromkeys(row.host for row in shown)]
        )
        silent = {row.name for row in rows if row.stale}
        gpus: list[GpuRow] = []
        for name, members in self.order.grouped([row for row in shown if row.gpu is not None]):
            if name:
                gpus.append(GpuRow(head_of(name, members), stale=False, head=True))
            gpus += [_gpu_row(row, silent) for row in members]
        self.query_one("#gpus", LineTable).show(gpus)
        everything = [_gpu_row(row, silent) for row in loads if row.gpu is not None]
        line = _line(rows, everything)
        if self.order.words:
            left = f"  {len(shown)} of {len(loads)}" if self.order.condition is not None else ""
            line = Text.assemble((f"{self.order.words}{left}  ", "note"), line)
        self.query_one("#cluster-line", Words).show(line)

    @on(LineTable.Moved, "#hosts")
    def show_its_gpus(self, event: LineTable.Moved) -> None:
        """Bring the GPUs of the host under the cursor into sight."""
        row, gpus = event.table.row_under_cursor(), self.query_one("#gpus", LineTable)
        if row is None or not event.table.has_focus:
            return
        places = (place for place, gpu in enumerate(gpus.rows) if gpu.sample.host == row.name)
        gpus.cursor = next(places, gpus.cursor)


def _host_rows(load: LoadPicture, names: tuple[str, ...], now: float) -> list[HostRow]:
    gpus: dict[str, list[GpuSample]] = {}
    for key in sorted(load.gpus, key=lambda key: (load.gpus[key].gpu, key)):
        gpus.setdefault(key[0], []).append(load.gpus[key])
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
    load: LoadPicture, names: tuple[str, ...], now: float, me: tuple[str, ...]
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
    words = f"{connected} of {_count(len(rows), 'host')} connected"
    lost = [row.name for row in rows if row.stale]
    text.append(words, style="warn" if lost else "good" if connected == len(rows) else "note")
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        text.append(f", without {', '.join(lost[:3])}{more}", style="warn")
    there = [row for row in gpus if not row.stale]
    others = sum(1 for row in there if row.other)
    broken = sum(1 for row in there if row.sample.ecc_uncorrected)
    slowed = sum(1 for row in there if row.sample.throttle)
    for number, words, style in (
        (others, f"!{others} used by others", "bad"),
        (broken, f"{broken} with ECC errors", "bad"),
        (slowed, f"{slowed} throttled", "warn"),
    ):
        if number:
            text.append(f", {words}", style=style)
    busy = [row.sample.util for row in there if row.sample.util is not None]
    if there:
        use = f" at {sum(busy) / len(busy):.0f} %" if busy else ""
        text.append(f", {_count(len(there), 'GPU')}{use}")
    return text
