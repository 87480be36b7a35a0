"""Chooses the ranks and times of a heat map for a number of lines and cells, and the worst ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from distconsole.model.time_text import is_time
from distconsole.runs import rank_history
from distconsole.runs.pace import UNUSUAL_SHARE

Item = TypeVar("Item")
NOW_COLUMNS = 5
"""A rank's present value is the median of these columns: one slow step is no fault of its own."""
FORGIVEN = 2
"""Columns as good as usual that do not end a bad time."""
MOST_COLUMNS = 1_000_000
"""More columns come from a clock that jumped."""
PACE = (rank_history.STEP, rank_history.OWN, rank_history.DATA, rank_history.RATE)
"""Quantities that mark a slow rank as such; it may have a high loss besides."""
LEVELS = 24
"""Colours of the scale."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Meaning of colours: a quantity, and its badness at both ends."""

    quantity: rank_history.Quantity
    low: float
    high: float

    def level(self, badness: float) -> int:
        """Return the place of ``badness`` on the scale of ``LEVELS``; -1 if unknown."""
        if badness == rank_history.UNKNOWN:
            return -1
        if badness == rank_history.BROKEN:
            return LEVELS
        share = (badness - self.low) / (self.high - self.low)
        return min(LEVELS - 1, max(0, int(share * LEVELS)))


@dataclass(frozen=True, slots=True)
class HeatRow:
    """The badness of some ranks, the worst in each cell, oldest first, beside the usual values.

    A ``middle`` row shows the usual values instead, for comparison.
    """

    label: str
    ranks: tuple[int, ...]
    cells: tuple[float, ...]
    usual: tuple[float, ...]
    scale: Scale
    middle: bool = False


@dataclass(frozen=True, slots=True)
class Worst:
    """A rank with a worse figure than usual, not necessarily slow: its value, the usual one, and since when (UNIX seconds)."""

    quantity: rank_history.Quantity
    rank: int
    host: str
    value: float
    usual: float
    since: float
    always: bool
    """It was so at the oldest known time."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A heat map of a quantity.

    The number of the ``first`` cell stays its own as time goes on; cell number 0 begins at ``began`` (UNIX seconds).
    ``steps`` are the highest steps that a rank had done by each cell; ``hosts`` is a single rank's, if known.
    """

    quantity: rank_history.Quantity
    rows: tuple[HeatRow, ...]
    first: int
    cell_seconds: float
    began: float
    steps: tuple[int, ...]
    worst: tuple[Worst, ...]
    ranks: int
    hosts: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(self.rows[0].usual)

    def time_of(self, cell: int) -> float:
        """Return the beginning of the shown cell number ``cell``, UNIX seconds."""
        return self.began + (self.first + cell) * self.cell_seconds

    @property
    def by_quantity(self) -> bool:
        """True if rows are the quantities of one rank instead of ranks."""
        return self.ranks == 1


def group_ranks(
    ranks: Sequence[int], hosts: dict[int, str], room: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return labels and ranks of at most ``room`` rows: by rank if they fit, else by host, else by several hosts."""
    room = max(1, room)
    if len(ranks) <= room:
        return [(f"{rank} {hosts.get(rank, '')}", (rank,)) for rank in ranks]
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    if len(by_host) == 1:
        parts = _batches(ranks, room)
        return [(f"ranks {part[0]}-{part[-1]}", tuple(part)) for part in parts]
    found = []
    for first, *others in _batches(list(by_host), room):
        label = f"{first} +{len(others)}" if others else first
        found.append((label, tuple(rank for name in (first, *others) for rank in by_host[name])))
    return found


def _batches(items: Sequence[Item], most: int) -> list[Sequence[Item]]:
    each = math.ceil(len(items) / most)
    return [items[at : at + each] for at in range(0, len(items), each)]


def heat_of(
    history: rank_history.RankHistory,
    quantity: str,
    ranks: Sequence[int],
    *,
    whole: bool,
    lines: int,
    width: int,
    listed: int,
    until: float | None = None,
) -> Heat | None:
    """Return the map of a ``quantity`` of ``ranks``; None without data.

    For a single rank it shows all quantities, this one first. It covers the ``whole`` run, else the last minutes, in at most
    ``lines`` of ``width`` cells, with up to ``listed`` worst ranks, until ``until`` (UNIX seconds) or the last known time.
    """
    track, began = history.whole if whole else history.recent, history.started
    known = track.ranks(quantity)
    ranks = [rank for rank in ranks if rank in known]
    about = history.quantities.get(quantity)
    if about is None or not ranks or not track.columns or began is None or width < 1:
        return None
    if until is not None:
        track = _extend(track, until - began, None if whole else rank_history.RECENT_COLUMNS)
    cut = _Cut(history, track, width)
    asked = [quantity]
    if len(ranks) == 1:
        others = (name for name in history.quantities if name != quantity)
        asked += [name for name in others if ranks[0] in track.ranks(name)]
        compared = 2 * len(asked) <= lines
        rows = [row for name in asked for row in cut.rank_rows(name, ranks[0], compared)][:lines]
    else:
        rows = cut.rows_of(quantity, group_ranks(ranks, history.hosts, lines))
    worst = [each for name in asked for each in cut.worst(name, ranks, listed)]
    return Heat(
        quantity=about,
        rows=tuple(rows),
        first=cut.first,
        cell_seconds=cut.each * track.seconds,
        began=began,
        steps=cut.steps,
        worst=tuple(worst[:listed]),
        ranks=len(ranks),
        hosts=tuple(history.hosts[r] for r in ranks[:1] if len(ranks) == 1 and r in history.hosts),
    )


def _extend(track: rank_history.Track, seconds: float, room: int | None) -> rank_history.Track:
    """Return a copy of ``track`` with unknown columns up to ``seconds`` after the start, at most ``room`` in all."""
    if not is_time(seconds) or not track.columns:
        return track
    total = int(seconds / track.seconds) - track.first + 1
    if not track.columns < total < MOST_COLUMNS:
        return track
    drop = max(0, total - room) if room is not None else 0
    steps = track.steps[drop:]
    steps.extend([track.steps[-1]] * (total - drop - len(steps)))
    grids = {
        name: rank_history.Grid(grid.places, grid.columns[drop:])
        for name, grid in track.grids.items()
    }
    return rank_history.Track(track.seconds, track.first + drop, total - drop, grids, steps)


class _Cut:
    """The columns of ``track`` from ``begin`` on, ``each`` of them in a cell."""

    def __init__(
        self, history: rank_history.RankHistory, track: rank_history.Track, width: int
    ) -> None:
        self.history, self.track = history, track
        columns = track.columns
        self.each = math.ceil((columns + 1) / width) if columns > width else 1
        # Cells begin at multiples of their length, so that a map moves only when a cell is full.
        self.first = -(-track.first // self.each)
        self.begin = self.first * self.each - track.first
        self._usual: dict[str, list[float]] = {}

    @property
    def steps(self) -> tuple[int, ...]:
        """The last step by each cell; the newest cell may not be full."""
        steps, left = self.track.steps, (self.track.columns - self.begin) % self.each
        full = tuple(steps[self.begin :][self.each - 1 :: self.each])
        return (*full, steps[-1]) if left else full

    def usual(self, quantity: str) -> list[float]:
        if quantity not in self._usual:
            columns = range(self.track.columns)
            self._usual[quantity] = [self.track.usual(quantity, at) for at in columns]
        return self._usual[quantity]

    def rows_of(
        self, quantity: str, groups: Sequence[tuple[str, tuple[int, ...]]]
    ) -> list[HeatRow]:
        cells = [self._cells(quantity, ranks) for _, ranks in groups]
        scale = Scale(self.history.quantities[quantity], *_ends(cells))
        usual = self._worst_of(self.usual(quantity)[self.begin :])
        return [
            HeatRow(label, ranks, line, usual, scale)
            for (label, ranks), line in zip(groups, cells, strict=True)
        ]

    def rank_rows(self, quantity: str, rank: int, compared: bool) -> list[HeatRow]:
        about = self.history.quantities[quantity]
        usual = self._worst_of(self.usual(quantity)[self.begin :])
        own = self._cells(quantity, (rank,))
        scale = Scale(about, *_ends((own, usual)))
        rows = [HeatRow(about.title, (rank,), own, usual, scale)]
        if compared and len(self.track.ranks(quantity)) > 1:
            rows.append(HeatRow("  usual", (rank,), usual, usual, scale, middle=True))
        return rows

    def _cells(self, quantity: str, ranks: Sequence[int]) -> tuple[float, ...]:
        return self._worst_of(self.track.worst(quantity, ranks, self.begin))

    def _worst_of(self, values: Sequence[float]) -> tuple[float, ...]:
        each = self.each
        if each == 1:
            return tuple(values)
        return tuple(max(values[at : at + each]) for at in range(0, len(values), each))

    def worst(self, quantity: str, ranks: Sequence[int], listed: int) -> list[Worst]:
        """Return the ranks that are worse than usual now, the worst first, each with its beginning."""
        history, track, usual = self.history, self.track, self.usual(quantity)
        about = history.quantities[quantity]
        begin = max(0, track.columns - NOW_COLUMNS)
        typical = _present(usual[begin:])
        if typical == rank_history.UNKNOWN:
            return []
        # A rank worse at none of these times has no worse median.
        latest = track.rows(quantity, begin)
        now = {
            rank: _present(latest[rank]) for rank in ranks if _worse(max(latest[rank]), typical)
        }
        bad = [
            rank
            for rank, value in now.items()
            if value != rank_history.UNKNOWN and _worse(value, typical)
        ]
        bad.sort(key=lambda rank: (-now[rank], rank))
        found = []
        for rank in bad[:listed]:
            column = _since(track.row(quantity, rank), usual)
            found.append(
                Worst(
                    quantity=about,
                    rank=rank,
                    host=history.hosts.get(rank, ""),
                    value=about.value(now[rank]),
                    usual=about.value(typical),
                    since=(history.started or 0.0) + (track.first + column) * track.seconds,
                    always=column == 0 or usual[column - 1] == rank_history.UNKNOWN,
                )
            )
        return found


def _ends(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the badness at both ends, rounded, without a few outliers that would make all else alike; NaN if none is known."""
    known = sorted(value for row in cells for value in row if math.isfinite(value))
    if not known:
        return math.nan, math.nan
    low, middle = known[len(known) // 50], known[len(known) // 2]
    high = known[-1]
    if high > 3 * abs(middle):
        high = max(known[len(known) * 98 // 100], middle + abs(middle))
    if high - low < 0.2 * abs(middle):
        high = low + 0.2 * abs(middle)
    low, high = _round(low, math.floor), _round(high, math.ceil)
    return (low, high) if high > low else (low, low + (abs(low) or 1.0))


def _round(value: float, way: Callable[[float], int]) -> float:
    if value == 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    return way(value / unit) * unit


def _present(values: Sequence[float]) -> float:
    known = sorted(value for value in values if value != rank_history.UNKNOWN)
    return known[len(known) // 2] if known else rank_history.UNKNOWN


def _worse(badness: float, usual: float) -> bool:
    """True if ``badness`` is a tenth and more above ``usual``; both are negative if little is bad."""
    if badness == rank_history.BROKEN or usual == rank_history.BROKEN:
        return badness == rank_history.BROKEN and usual != rank_history.BROKEN
    return badness - usual > UNUSUAL_SHARE * max(abs(usual), 1e-9)


def _since(row: Sequence[float], usual: Sequence[float]) -> int:
    """Return the first column of the current bad time."""
    began, forgiven = len(row) - 1, 0
    for column in range(len(row) - 1, -1, -1):
        if row[column] == rank_history.UNKNOWN or usual[column] == rank_history.UNKNOWN:
            continue
        if _worse(row[column], usual[column]):
            began, forgiven = column, 0
        else:
            forgiven += 1
            if forgiven > FORGIVEN:
                break
    return began
