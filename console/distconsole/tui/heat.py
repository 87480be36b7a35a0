"""Which ranks and moments a heat map shows on so many lines and cells, and who is worst. It draws nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from distconsole.monitor.rank_history import BROKEN, UNKNOWN, Quantity, RankHistory, Track

WORSE_SHARE = 1.1
"""A rank is listed from this multiple of what is usual on."""
NOW_COLUMNS = 5
"""A rank's present is the median of so many moments: one slow step is none's fault."""
FORGIVEN = 2
"""Moments as good as usual that do not end a bad time."""
LEVELS = 24
"""Colours of the scale."""


@dataclass(frozen=True, slots=True)
class HeatRow:
    """One line of cells: its label and the ranks whose worst it shows."""

    label: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Worst:
    """A rank that is worse than usual: its value, what is usual, and since when (UNIX seconds)."""

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
        cells: Badness by row and cell, oldest first.
        first: The number of the first cell; a cell keeps its number while time goes on.
        cell_seconds: How long a cell is.
        began: UNIX seconds at which cell number 0 begins.
        low, high: Badness at the ends of the scale.
        steps: The last step that some rank had done by each cell.
        usual: What is usual in each cell.
    """

    quantity: Quantity
    rows: tuple[HeatRow, ...]
    cells: tuple[tuple[float, ...], ...]
    first: int
    cell_seconds: float
    began: float
    low: float
    high: float
    steps: tuple[int, ...]
    usual: tuple[float, ...]
    worst: tuple[Worst, ...]
    ranks: int

    def level(self, badness: float) -> int:
        """Return the place of ``badness`` on the scale of ``LEVELS``; -1 where nothing is known."""
        if badness == UNKNOWN:
            return -1
        if badness == BROKEN:
            return LEVELS
        share = (badness - self.low) / (self.high - self.low)
        return min(LEVELS - 1, max(0, int(share * LEVELS)))


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
) -> Heat | None:
    """Return the map of ``ranks``; None while nothing is known.

    Args:
        history: What was.
        quantity: One of its quantities.
        ranks: Those that are zoomed to; of one the other quantities are not shown.
        whole: The whole run instead of the last minutes.
        lines: Rows that there is room for.
        width: Cells of a row.
        listed: How many of the worst to tell at most.
    """
    track = history.whole if whole else history.recent
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
    begin = first * each - track.first
    rows = rows_for(ranks, history.hosts, lines)
    cells = tuple(_cells(track, quantity, row.ranks, begin, each) for row in rows)
    everyone = sorted(known)
    usual = [track.usual(quantity, everyone, column) for column in range(track.columns)]
    low, high = _scale(cells)
    return Heat(
        quantity=about,
        rows=rows,
        cells=cells,
        first=first,
        cell_seconds=each * track.seconds,
        began=history.started,
        low=low,
        high=high,
        steps=tuple(track.steps[begin:][each - 1 :: each]) + _tail(track, begin, each),
        usual=tuple(max(usual[at : at + each]) for at in range(begin, track.columns, each)),
        worst=tuple(_worst(history, track, quantity, ranks, usual, listed)),
        ranks=len(ranks),
    )


def _tail(track: Track, begin: int, each: int) -> tuple[int, ...]:
    return (track.steps[-1],) if (track.columns - begin) % each else ()


def _cells(
    track: Track, quantity: str, ranks: Sequence[int], begin: int, each: int
) -> tuple[float, ...]:
    rows = [track.row(quantity, rank, begin) for rank in ranks]
    worst: Sequence[float] = rows[0] if len(rows) == 1 else list(map(max, *rows))
    if each == 1:
        return tuple(worst)
    return tuple(max(worst[at : at + each]) for at in range(0, len(worst), each))


def _scale(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
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
    now = {rank: _present(track.row(quantity, rank, begin)) for rank in ranks}
    typical = _present(usual[begin:])
    if typical == UNKNOWN:
        return []
    bad = [rank for rank, value in now.items() if value != UNKNOWN and _worse(value, typical)]
    bad.sort(key=lambda rank: (-now[rank], rank))
    found = []
    for rank in bad[:listed]:
        column = _since(track.row(quantity, rank), usual)
        since = (history.started or 0.0) + (track.first + column) * track.seconds
        found.append(
            Worst(
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
    return badness - usual > (WORSE_SHARE - 1) * max(abs(usual), 1e-9)


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
