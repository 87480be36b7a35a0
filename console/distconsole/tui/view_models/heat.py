"""Which ranks and moments a heat map shows on so many lines and cells, and who is worst. It draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distconsole.model.time_text import is_time
from distconsole.runs.pace import UNUSUAL_SHARE
from distconsole.runs.rank_history import (
    BROKEN,
    DATA,
    RATE,
    RECENT_COLUMNS,
    STEP,
    UNKNOWN,
    Quantity,
    RankHistory,
    Track,
)

NOW_COLUMNS = 5
"""A rank's present is the median of so many moments: one slow step is none's fault."""
FORGIVEN = 2
"""Moments as good as usual that do not end a bad time."""
MOST_COLUMNS = 1_000_000
"""Moments beyond this are the doing of a clock that jumped."""
PACE = (STEP, DATA, RATE)
"""Quantities in which a slow rank is marked as such; it may have a high loss besides."""
LEVELS = 24
"""Colours of the scale."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What colours mean: a quantity, and its badness at both ends."""

    quantity: Quantity
    low: float
    high: float

    def level(self, badness: float) -> int:
        """Return the place of ``badness`` on the scale of ``LEVELS``; -1 where nothing is known."""
        if badness == UNKNOWN:
            return -1
        if badness == BROKEN:
            return LEVELS
        share = (badness - self.low) / (self.high - self.low)
        return min(LEVELS - 1, max(0, int(share * LEVELS)))


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One line of cells: its label and the ranks whose worst it shows."""

    label: str
    ranks: tuple[int, ...]
    middle: bool = False
    """It shows what is usual instead, for comparison."""


@dataclass(frozen=True, slots=True)
class Worst:
    """A rank whose figure is worse than usual, which need not make it slow: its value, what is usual, and since when (UNIX seconds)."""

    quantity: Quantity
    rank: int
    host: str
    value: float
    usual: float
    since: float
    always: bool
    """It was so at the oldest moment that is known."""


@dataclass(frozen=True, slots=True)
class Heat:
    """What is shown.

    Attributes:
        quantity: What was asked for.
        cells: Badness by row and cell, oldest first.
        scales: By row.
        usual: What is usual in each cell, by row.
        first: The number of the first cell; a cell keeps its number while time goes on.
        cell_seconds: How long a cell is.
        began: UNIX seconds at which cell number 0 begins.
        steps: The last step that some rank had done by each cell.
    """

    quantity: Quantity
    rows: tuple[HeatRow, ...]
    cells: tuple[tuple[float, ...], ...]
    first: int
    cell_seconds: float
    began: float
    scales: tuple[Scale, ...]
    usual: tuple[tuple[float, ...], ...]
    steps: tuple[int, ...]
    worst: tuple[Worst, ...]
    ranks: int
    hosts: tuple[str, ...] = ()
    """Of one rank, where it is known: its host."""

    @property
    def count(self) -> int:
        return len(self.usual[0])

    def time_of(self, cell: int) -> float:
        """Return when cell number ``cell`` of those that are shown begins, in UNIX seconds."""
        return self.began + (self.first + cell) * self.cell_seconds

    @property
    def by_quantity(self) -> bool:
        """Whether rows are the quantities of one rank instead of ranks."""
        return self.ranks == 1


def rows_for(ranks: Sequence[int], hosts: dict[int, str], room: int) -> tuple[HeatRow, ...]:
    """Return at most ``room`` rows for ``ranks``: by rank where they fit, else by host, else by several hosts."""
    room = max(1, room)
    if len(ranks) <= room:
        return tuple(HeatRow(f"{rank} {hosts.get(rank, '')}", (rank,)) for rank in ranks)
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    if len(by_host) == 1:
        each = math.ceil(len(ranks) / room)
        parts = [tuple(ranks[at : at + each]) for at in range(0, len(ranks), each)]
        return tuple(HeatRow(f"ranks {part[0]}-{part[-1]}", part) for part in parts)
    names = list(by_host)
    each = math.ceil(len(names) / room)
    rows = []
    for at in range(0, len(names), each):
        group = names[at : at + each]
        label = group[0] if len(group) == 1 else f"{group[0]} +{len(group) - 1}"
        rows.append(HeatRow(label, tuple(rank for name in group for rank in by_host[name])))
    return tuple(rows)


def heat_of(
    history: RankHistory,
    quantity: str,
    ranks: Sequence[int],
    *,
    whole: bool,
    lines: int,
    width: int,
    listed: int,
    until: float | None = None,
) -> Heat | None:
    """Return the map of ``ranks``; None while nothing is known.

    Args:
        history: What was.
        quantity: One of its quantities.
        ranks: Those that are zoomed to; of one all quantities are shown, this one first.
        whole: The whole run instead of the last minutes.
        lines: Rows that there is room for.
        width: Cells of a row.
        listed: How many of the worst to tell at most.
        until: Where the map ends (UNIX seconds), blank from the last moment that is known; None ends it there.
    """
    track = history.whole if whole else history.recent
    if until is not None and history.started is not None:
        track = _until(track, until - history.started, None if whole else RECENT_COLUMNS)
    about = history.quantities.get(quantity)
    known = track.rows.get(quantity)
    if about is None or not known or not track.columns or history.started is None or width < 1:
        return None
    ranks = [rank for rank in ranks if rank in known]
    if not ranks:
        return None
    each = math.ceil((track.columns + 1) / width) if track.columns > width else 1
    # Cells begin at multiples of their length, so that a picture moves only when a cell is full.
    first = -(-track.first // each)
    alone = len(ranks) == 1
    asked = _quantities(history, track, quantity, ranks[0]) if alone else [quantity]
    middles = {name: _usual(track, name) for name in asked}
    span = _Span(track, first * each - track.first, each, middles)
    if alone:
        compared = 2 * len(asked) <= lines
        shown = [
            line for name in asked for line in span.of_rank(history, name, ranks[0], compared)
        ][:lines]
    else:
        shown = span.of_ranks(history, quantity, rows_for(ranks, history.hosts, lines))
    worst = [
        each
        for name, usual in middles.items()
        for each in _worst(history, track, name, ranks, usual, listed)
    ]
    return Heat(
        quantity=about,
        rows=tuple(line.row for line in shown),
        cells=tuple(line.cells for line in shown),
        scales=tuple(line.scale for line in shown),
        usual=tuple(line.usual for line in shown),
        first=first,
        cell_seconds=each * track.seconds,
        began=history.started,
        steps=tuple(track.steps[span.begin :][each - 1 :: each]) + span.tail(),
        worst=tuple(worst[:listed]),
        ranks=len(ranks),
        hosts=tuple(history.hosts[rank] for rank in ranks if alone and rank in history.hosts),
    )


def _until(track: Track, seconds: float, room: int | None) -> Track:
    """Return ``track`` with moments of which nothing is known up to ``seconds`` after the start.

    Args:
        track: It stays as it is.
        seconds: Where the last moment lies.
        room: How many moments are kept at most; None keeps all.
    """
    if not is_time(seconds) or not track.columns:
        return track
    total = int(seconds / track.seconds) - track.first + 1
    if not track.columns < total < MOST_COLUMNS:
        return track
    drop = max(0, total - room) if room is not None else 0
    steps = track.steps[drop:]
    steps.extend([track.steps[-1]] * (total - drop - len(steps)))
    rows = {
        name: {rank: row[drop:] if drop else row for rank, row in rows.items()}
        for name, rows in track.rows.items()
    }
    return Track(track.seconds, track.first + drop, total - drop, rows, steps)


def _quantities(history: RankHistory, track: Track, chosen: str, rank: int) -> list[str]:
    """Return what is known of ``rank``, what was ``chosen`` first."""
    known = [key for key in history.quantities if rank in track.rows.get(key, ())]
    return [chosen, *(key for key in known if key != chosen)]


@dataclass(frozen=True, slots=True)
class _Line:
    """A row with what it shows."""

    row: HeatRow
    cells: tuple[float, ...]
    scale: Scale
    usual: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Span:
    """The moments of ``track`` from column ``begin`` on, ``each`` of them in a cell.

    ``middles`` has, by quantity, what is usual in each column.
    """

    track: Track
    begin: int
    each: int
    middles: dict[str, list[float]]

    def tail(self) -> tuple[int, ...]:
        left = (self.track.columns - self.begin) % self.each
        return (self.track.steps[-1],) if left else ()

    def usual(self, quantity: str) -> tuple[float, ...]:
        usual, each = self.middles[quantity], self.each
        return tuple(max(usual[at : at + each]) for at in range(self.begin, len(usual), each))

    def of_ranks(
        self, history: RankHistory, quantity: str, rows: Sequence[HeatRow]
    ) -> list[_Line]:
        """Return lines of one quantity and one scale."""
        cells = [_cells(self.track, quantity, row.ranks, self.begin, self.each) for row in rows]
        scale = Scale(history.quantities[quantity], *_ends(cells))
        usual = self.usual(quantity)
        return [_Line(row, line, scale, usual) for row, line in zip(rows, cells, strict=True)]

    def of_rank(
        self, history: RankHistory, quantity: str, rank: int, compared: bool
    ) -> list[_Line]:
        """Return the line of one rank's quantity, and for comparison what is usual of all."""
        about, usual = history.quantities[quantity], self.usual(quantity)
        own = _cells(self.track, quantity, (rank,), self.begin, self.each)
        scale = Scale(about, *_ends((own, usual)))
        lines = [_Line(HeatRow(about.title, (rank,)), own, scale, usual)]
        if compared and len(self.track.rows[quantity]) > 1:
            lines.append(_Line(HeatRow("  usual", (rank,), middle=True), usual, scale, usual))
        return lines


def _usual(track: Track, quantity: str) -> list[float]:
    """Return what is usual of all ranks in each column."""
    everyone = sorted(track.rows[quantity])
    return [track.usual(quantity, everyone, column) for column in range(track.columns)]


def _cells(
    track: Track, quantity: str, ranks: Sequence[int], begin: int, each: int
) -> tuple[float, ...]:
    rows = [track.row(quantity, rank, begin) for rank in ranks]
    worst: Sequence[float] = rows[0] if len(rows) == 1 else list(map(max, *rows))
    if each == 1:
        return tuple(worst)
    return tuple(max(worst[at : at + each]) for at in range(0, len(worst), each))


def _ends(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the badness at both ends, in round figures; a few outliers do not make all else alike."""
    known = sorted(value for row in cells for value in row if math.isfinite(value))
    if not known:
        return 0.0, 1.0
    low, middle = known[len(known) // 50], known[len(known) // 2]
    high = known[-1]
    if high > 3 * abs(middle):
        high = max(known[len(known) * 98 // 100], middle + abs(middle))
    if high - low < 0.2 * abs(middle):
        high = low + 0.2 * abs(middle)
    low, high = _round(low, math.floor), _round(high, math.ceil)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _round(value: float, way: object) -> float:
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    turned = way(value / unit)  # type: ignore[operator]
    return float(turned * unit)


def _worst(
    history: RankHistory,
    track: Track,
    quantity: str,
    ranks: Sequence[int],
    usual: Sequence[float],
    listed: int,
) -> list[Worst]:
    """Return who is worse than usual now, the worst first, each with since when."""
    about = history.quantities[quantity]
    begin = max(0, track.columns - NOW_COLUMNS)
    typical = _present(usual[begin:])
    if typical == UNKNOWN:
        return []
    # Who was not worse at any of these moments is not so in the middle of them.
    latest = ((rank, track.row(quantity, rank, begin)) for rank in ranks)
    now = {rank: _present(row) for rank, row in latest if row and _worse(max(row), typical)}
    bad = [rank for rank, value in now.items() if value != UNKNOWN and _worse(value, typical)]
    bad.sort(key=lambda rank: (-now[rank], rank))
    found = []
    for rank in bad[:listed]:
        column = _since(track.row(quantity, rank), usual)
        since = (history.started or 0.0) + (track.first + column) * track.seconds
        found.append(
            Worst(
                quantity=about,
                rank=rank,
                host=history.hosts.get(rank, ""),
                value=about.value(now[rank]),
                usual=about.value(typical),
                since=since,
                always=column == 0 or usual[column - 1] == UNKNOWN,
            )
        )
    return found


def _present(values: Sequence[float]) -> float:
    known = sorted(value for value in values if value != UNKNOWN)
    return known[len(known) // 2] if known else UNKNOWN


def _worse(badness: float, usual: float) -> bool:
    """Whether ``badness`` is a tenth and more above ``usual``; both are negative where little is bad."""
    if badness == BROKEN or usual == BROKEN:
        return badness == BROKEN and usual != BROKEN
    return badness - usual > UNUSUAL_SHARE * max(abs(usual), 1e-9)


def _since(row: Sequence[float], usual: Sequence[float]) -> int:
    """Return the column at which the bad time that lasts still began."""
    began, forgiven = len(row) - 1, 0
    for column in range(len(row) - 1, -1, -1):
        if row[column] == UNKNOWN or usual[column] == UNKNOWN:
            continue
        if _worse(row[column], usual[column]):
            began, forgiven = column, 0
        else:
            forgiven += 1
            if forgiven > FORGIVEN:
                break
    return began
