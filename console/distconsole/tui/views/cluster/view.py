"""The hosts and their GPUs, now and in the last minutes; or one host's page."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events, on
from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from distconsole.config.hosts import HostOffer
from distconsole.model import requests as ask
from distconsole.model.names import count_text, join_some
from distconsole.model.time_text import clock_text, span_text
from distconsole.runs.conditions.load_fields import LOAD_FIELDS, LoadRow
from distconsole.runs.pace import FRESH_SECONDS
from distconsole.text.tables import Column
from distconsole.tui.prompt.keymap import Keymap
from distconsole.tui.prompt.keys import Key
from distconsole.tui.views.cluster.host import (
    PROCESS_COLUMNS,
    processes_on,
    unread_because,
    words_on,
)
from distconsole.tui.views.cluster.rows import (
    GPU_COLUMNS,
    HOST_COLUMNS,
    PLOTS,
    RARE,
    RECENT_TITLE,
    GpuRow,
    HostRow,
    gpu_key,
    gpu_row,
    group_head,
    host_rows,
    load_kinds,
    load_plots,
    load_rows,
)
from distconsole.tui.views.row_order import OrderedView
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.line_widget import LineWidget
from distconsole.tui.widgets.lines import Verdict, Words
from distconsole.tui.widgets.panel import Panel
from distconsole.tui.widgets.plots import PlotPanel, Plots, spread

if TYPE_CHECKING:
    from distconsole.tui.tasks import RequestTask

MANY_HOSTS = 40
"""Least number of hosts for a map of cells."""
TEN = 10
SHADES, BOUNDS = "·░▒▓█", (5, 30, 60, 85)
"""Cells by percent, and the bounds between the shades."""
LEGEND = "· < 5 %  ░ < 30  ▒ < 60  ▓ < 85  █ more  ✗ lost  ? silent"
LEAST_PLOT, PLOT_CELLS = 6, 36
"""Least rows and cells of a plot."""
LEAST_GPUS, LEAST_HOSTS = 8, 4
"""Rows that plots leave to the tables."""
PAGE_ROWS = 10
"""Rows of processes and of messages on the page of a host."""
HOST_KEYS = ("open", "sort ", "filter ", "group ", "check --hosts {host}")
MOST_AT_ONCE = 16
"""Hosts of an ssh_config that Enter takes at once; for more it asks which."""
MOST_NAMES = 24
NONE_YET = "No host is connected before you choose"
PAGE_KEYS = ("back", "check --hosts {host}")
"""Lines of keys in the border of the hosts, and of one host."""


class HostCells(LineWidget):
    """One cell a host; a click on it selects the host."""

    DEFAULT_CSS = "HostCells { height: auto; margin-bottom: 1; display: none; }"

    rows: Sequence[HostRow] = ()
    chosen = ""

    @dataclass
    class Pointed(Message):
        host: str

    def show(self, rows: Sequence[HostRow], chosen: str) -> None:
        self.display = len(rows) >= MANY_HOSTS
        resized = len(rows) != len(self.rows)
        self.rows, self.chosen = rows, chosen
        if self.display:
            self.refresh(layout=True) if resized else self.redraw()

    def lines_in(self, width: int) -> int:
        return -(-len(self.rows) // _a_line(width))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.lines_in(width)

    def make_line(self, y: int) -> Strip:
        count = _a_line(self.cells)
        cells: list[tuple[str, Style]] = []
        for place, row in enumerate(self.rows[y * count : (y + 1) * count]):
            if place and place % TEN == 0:
                cells.append((" ", self.rich_style))
            sign, meaning = _sign(row)
            style = self.rich_style + self.app.console.get_style(meaning, default="")
            cells.append((sign, style + Style(reverse=row.name == self.chosen)))
        same = groupby(cells, key=itemgetter(1))
        return self.join(
            Segment("".join(sign for sign, _ in alike), style) for style, alike in same
        )

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.x % (TEN + 1) == TEN:
            return
        place = offset.y * _a_line(self.cells) + offset.x - offset.x // (TEN + 1)
        if place < len(self.rows):
            self.post_message(self.Pointed(self.rows[place].name))


def _a_line(width: int) -> int:
    return max(1, (width + 1) // (TEN + 1)) * TEN


def _sign(row: HostRow) -> tuple[str, str]:
    if row.stale:
        return ("✗", "bad") if row.lost is not None else ("?", "warn")
    level = row.gpu_use if row.gpus else row.node.cpu if row.node else None
    if level is None:
        return "·", "faint"
    return SHADES[bisect_right(BOUNDS, level)], "curve"


class ClusterView(OrderedView[LoadRow]):
    """Hosts above, plots, GPUs below, if any; Enter leads to the page of one host."""

    DEFAULT_CSS = """
    ClusterView > #hosts-panel { height: 1fr; }
    ClusterView > #offers-panel { height: 1fr; display: none; }
    ClusterView > #host-page { height: auto; display: none; }
    ClusterView > #load-plots { display: none; }
    ClusterView > #gpus-panel { height: 1fr; }
    ClusterView LineTable { height: 1fr; }
    ClusterView #offers { height: auto; max-height: 60%; margin-bottom: 1; display: none; }
    ClusterView #processes-panel { width: 3fr; height: 100%; }
    ClusterView #said-panel { width: 2fr; height: 100%; }
    """

    fields = LOAD_FIELDS
    usual = "host"
    about = ""
    """The host whose page is shown."""

    def __init__(self, keymap: Keymap, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.me: tuple[str, ...] = ()
        """Names of the operator; other users of a GPU are marked."""
        self._keymap = keymap

    def compose(self) -> ComposeResult:
        yield Verdict("connecting…", id="cluster-line")
        with Panel("Hosts to choose from", id="offers-panel"):
            yield LineTable(OFFER_COLUMNS, id="offers")
            yield Words(id="offers-words")
        with Panel("Hosts", id="hosts-panel"):
            yield HostCells()
            yield LineTable(HOST_COLUMNS, same=lambda row: row.name, empty="no hosts", id="hosts")
        with Horizontal(id="host-page"):
            legend = "cpu %: of one processor"
            with Panel("Processes", legend=legend, id="processes-panel"):
                yield LineTable(PROCESS_COLUMNS, empty="none is known", id="processes")
            with Panel("Findings and log", id="said-panel"), VerticalScroll():
                yield Words(id="said-of-host")
        yield Plots(PLOTS, PLOT_CELLS, id="load-plots")
        with Panel("GPUs", id="gpus-panel"):
            yield LineTable(GPU_COLUMNS, same=gpu_key, id="gpus")

    @property
    def offers_hosts(self) -> bool:
        return bool(self.query_one("#offers", LineTable).rows)

    def offer(self, offers: Sequence[HostOffer]) -> None:
        """Show host lists to choose from; without any, the hosts again."""
        if not offers and not self.offers_hosts:
            return
        self.query_one("#offers", LineTable).show(offers)
        for name in ("#hosts-panel", "#gpus-panel"):
            self.query_one(name).display = not offers
        for name in ("#offers-panel", "#offers"):  # a table that is shown takes the focus
            self.query_one(name).display = bool(offers)
        self.query_one("#offers-words", Words).show(offer_words(offers, self._keymap.first))
        self.query_one("#cluster-line", Verdict).say(*offer_verdict(offers))

    def offer_under_cursor(self) -> HostOffer | None:
        return self.query_one("#offers", LineTable).row_under_cursor()

    def host_under_cursor(self) -> str:
        row: HostRow | None = self.query_one("#hosts", LineTable).row_under_cursor()
        return self.about or ("" if row is None else row.name)

    def open(self) -> None:
        """Turn to the page of the host under the cursor, if there is one."""
        gpu: GpuRow | None = self.query_one("#gpus", LineTable).row_under_cursor()
        in_gpus = self.query_one("#gpus").has_focus and gpu is not None and not gpu.head
        self.about = gpu.sample.host if in_gpus and gpu is not None else self.host_under_cursor()
        self.query_one("#hosts", LineTable).focus()

    def step_back(self) -> bool:
        """Leave the page of a host; return False without one."""
        before, self.about = self.about, ""
        return bool(before)

    def draw(
        self,
        task: RequestTask,
        names: tuple[str, ...],
        now: float,
        runs: Sequence[RequestTask] = (),
        check: RequestTask | None = None,
    ) -> None:
        """Show what ``task`` knows of the hosts called ``names`` at ``now`` (monotonic seconds), and of one what ``runs`` and ``check`` know."""
        with task.lock:
            load, every = task.load, host_rows(task.load, names, now)
            seen = max(load.seen_at.values(), default=None)
        if self.about not in {row.name for row in every}:
            self.about = ""
        rows = [row for row in every if row.name == self.about] if self.about else every
        loads = load_rows(rows, self.me)
        shown = loads if self.about else self.order.shown(loads)
        hosts = {row.name: row for row in rows}
        listed = [hosts[name] for name in dict.fromkeys(row.host for row in shown)]
        silent = {row.name for row in rows if row.stale}
        gpus: list[GpuRow] = []
        for name, members in self.order.grouped([row for row in shown if row.gpu is not None]):
            if name:
                gpus.append(GpuRow(group_head(name, members), stale=False, head=True))
            gpus += [gpu_row(row, silent, load, now) for row in members]
        everything = [gpu_row(row, silent, load, now) for row in loads if row.gpu is not None]
        left = f"  {len(shown)} of {len(loads)}" if self.order.condition is not None else ""
        how = f"{self.order.words}{left}" if self.order.words and not self.about else ""
        age = "" if seen is None else _age_text(task.unix() - (now - seen), now - seen)
        self._draw_tables(listed, gpus, recent=bool(load.cpu))
        kinds = load_kinds(load, listed)
        self._entitle(len(rows), len(everything), "  ".join(filter(None, (how, age))))
        if self.about:
            row = hosts[self.about]
            processes = self.query_one("#processes", LineTable)
            processes.leave_out(() if row.gpus else ("gpu",))
            processes.show(processes_on(row, runs, load, now))
            watches = isinstance(task.request, ask.Top)
            unread = unread_because(row, load, now) if watches else "read by top alone"
            self.query_one("#processes-panel", Panel).entitle(state=unread)
            self.query_one("#said-of-host", Words).show(words_on(row.name, load, runs, check))
        self.query_one("#cluster-line", Verdict).say(*verdict_of(rows, everything))
        plots = self.query_one(Plots)
        plots.rows = self._share_lines(len(gpus), len(listed), len(kinds))
        drawn = {d.key: d for panel in self.query(PlotPanel) if (d := panel.plot.data) is not None}
        picked = plots.pick(kinds, itemgetter(0))
        plots.show(load_plots(load, picked, listed, now, drawn))

    def _draw_tables(self, hosts: list[HostRow], gpus: list[GpuRow], *, recent: bool) -> None:
        samples = [row.sample for row in gpus]
        silent = [title for title, told in RARE.items() if not any(map(told, samples))]
        for name, rows in (("#hosts", hosts), ("#gpus", gpus)):
            table: LineTable[HostRow | GpuRow] = self.query_one(name, LineTable)
            unknown = [
                *silent,
                *(() if recent else (RECENT_TITLE,)),
                *(() if any(row.gpus for row in hosts) else ("gpus",)),
            ]
            table.leave_out(unknown)
            table.show(rows)
        self.query_one(HostCells).show(hosts, self.host_under_cursor())

    def _entitle(self, hosts: int, gpus: int, state: str) -> None:
        legend = LEGEND if hosts >= MANY_HOSTS else "grey: no current value"
        title = f"Host {self.about}" if self.about else f"Hosts {hosts:,}"
        keys = self._keymap.hints("cluster", *(PAGE_KEYS if self.about else HOST_KEYS))
        self.query_one("#hosts-panel", Panel).entitle(title, state, keys=keys, legend=legend)
        self.query_one("#gpus-panel", Panel).entitle(f"GPUs {gpus:,}")

    def _share_lines(self, gpus: int, hosts: int, plots: int) -> int:
        """Share the lines among GPUs, hosts and plots; return the number of rows of plots."""
        panel, cells = self.query_one("#hosts-panel", Panel), self.query_one(HostCells)
        frame = 2 if panel.framed else 1
        above = cells.lines_in(self.size.width - 4) + 1 if cells.display else 0
        page = min(frame + PAGE_ROWS, self.size.height // 3) if self.about else 0
        parts = share_lines(
            self.size.height - 1 - page, frame, above + 1 + max(1, hosts), gpus, plots
        )
        self.query_one("#host-page").display = bool(page)
        self.query_one("#host-page").styles.height = page
        for name, lines in zip(("#hosts-panel", "#load-plots", "#gpus-panel"), parts, strict=True):
            part = self.query_one(name)
            part.display = bool(lines)
            part.styles.height = lines
        return spread(parts[1], frame, plots, self.size.height)[0]

    @on(LineTable.Moved, "#hosts")
    def show_its_gpus(self, event: LineTable.Moved) -> None:
        row, gpus = event.table.row_under_cursor(), self.query_one("#gpus", LineTable)
        if row is None or not event.table.has_focus:
            return
        places = (place for place, gpu in enumerate(gpus.rows) if gpu.sample.host == row.name)
        gpus.cursor = next(places, gpus.cursor)
        self.query_one(HostCells).show(self.query_one("#hosts", LineTable).rows, row.name)

    @on(HostCells.Pointed)
    def go_to_host(self, event: HostCells.Pointed) -> None:
        table: LineTable[HostRow] = self.query_one("#hosts", LineTable)
        table.focus()
        for place, row in enumerate(table.rows):
            if row.name == event.host:
                table.action_move(place - table.cursor)


def share_lines(lines: int, frame: int, hosts: int, gpus: int, plots: int) -> tuple[int, int, int]:
    """Return the lines of hosts, plots and GPUs out of ``lines``; 0 for a part without room.

    Args:
        frame: Lines of a panel's frame.
        hosts: Lines of the hosts, with their heading.
        gpus: Rows of GPUs; 0 leaves out their panel.
        plots: Number of plots, which get the spare lines, as ``spread`` does it.
    """
    least = frame + 1 + min(gpus, LEAST_GPUS) if gpus else 0
    wanted = frame + hosts
    kept = min(wanted, frame + 1 + LEAST_HOSTS)
    below = 0
    if plots and lines - least - kept >= frame + LEAST_PLOT:
        spare = lines - min(wanted, lines // 2) - (frame + 1 + gpus if gpus else 0)
        below = max(frame + LEAST_PLOT, spread(spare, frame, plots, lines)[1])
        below = min(below, lines - least - kept)
    if not gpus:
        return lines - below, below, 0
    rest = lines - below
    above = min(wanted, max(rest // 2, rest - (frame + 1 + gpus)))
    if below:
        above = max(kept, min(above, rest - least))
    return above, below, rest - above


def offer_verdict(offers: Sequence[HostOffer]) -> tuple[str, str, str, str]:
    """Return tone, mark and words for a console without hosts, with the effect of Enter."""
    if not offers:
        return "note", "…", "connecting…", ""
    first = offers[0]
    known = f"{first.place.partition(';')[0]} knows {join_some(first.names)}"
    return "note", "…", f"NO HOSTS YET  {known}", ""


def offer_words(offers: Sequence[HostOffer], keys: Sequence[Key]) -> Text:
    """Return the ways to choose hosts: a line for each key, and notes on lists left out."""
    use, *others = keys
    rows = [
        (use.shown, "use the hosts in the row under the cursor"),
        (":", "hosts a,b  names others; Tab completes the names that are known"),
        *((key.shown, key.does) for key in others),
    ]
    text = Text()
    for shown, does in rows:
        text.append(f" {shown:<6}", style="accent").append(f"{does}\n")
    notes = [note for offer in offers for note in offer.place.split("; ")[1:]]
    text.append("\n")
    for words in (NONE_YET, *notes):
        text.append(f" {words}.\n", style="faint")
    return text


def _use_text(offer: HostOffer) -> str:
    count = len(offer.names)
    if not offer.is_job and count > MOST_AT_ONCE:
        return "asks which"
    return {1: "uses it", 2: "uses both"}.get(count, f"uses all {count:,}")


OFFER_COLUMNS: list[Column[HostOffer]] = [
    Column("where from", 16, lambda offer: offer.place.partition(";")[0], 0, wide=24),
    Column("hosts", 5, lambda offer: f"{len(offer.names):,}", 2, right=True),
    Column("Enter", 13, _use_text, 1),
    Column("names", 24, lambda offer: join_some(offer.names, MOST_NAMES), 0),
]


def _age_text(seen: float, seconds: float) -> str:
    """Return the time of the newest figures (UNIX seconds), and their age if they are old."""
    old = f", {span_text(seconds)} ago" if seconds > FRESH_SECONDS else ""
    return f"as of {clock_text(seen)}{old}"


def verdict_of(rows: Sequence[HostRow], gpus: Sequence[GpuRow]) -> tuple[str, str, str, str]:
    """Return tone, mark and words about the hosts, the worst first, and their number."""
    there = [row for row in gpus if not row.stale]
    connected = sum(1 for row in rows if row.node is not None and not row.stale)
    counts = f"{connected} of {count_text(len(rows), 'host')} connected"
    if len(rows) == 1:
        counts = f"{rows[0].name} connected" if connected else f"{rows[0].name} not connected"
    if there:
        busy = [row.sample.util for row in there if row.sample.util is not None]
        use = f" at {sum(busy) / len(busy):.0f} %" if busy else ""
        counts += f", {count_text(len(there), 'GPU')}{use}"
    others = sum(row.other for row in there)
    broken = sum(bool(row.memory_errors) for row in there)
    slowed = sum(bool(row.sample.throttle) for row in there)
    lost = [row for row in rows if row.lost is not None]
    age = _longest(lost) if lost else ""
    troubles = [f"{_names(lost)} lost{age and f' for {age}'}: {lost[0].lost}"] if lost else []
    troubles += [f"{count_text(others, 'GPU')} used by others"] if others else []
    troubles += [f"{broken} with ECC errors"] if broken else []
    if silent := [row for row in rows if row.stale and row.lost is None]:
        troubles.append(f"{_names(silent)} silent for {_longest(silent)}")
    troubles += [f"{slowed} throttled"] if slowed else []
    words = ", ".join(troubles)
    if lost or others or broken:
        return "bad", "✗", words, counts
    if words:
        return "warn", "▲", words, counts
    return ("good", "●", counts, "") if connected == len(rows) else ("note", "…", counts, "")


def _names(rows: Sequence[HostRow]) -> str:
    return join_some([row.name for row in rows], 3)


def _longest(rows: Sequence[HostRow]) -> str:
    return span_text(max(ages)) if (ages := [r.age_seconds for r in rows if r.age_seconds]) else ""
