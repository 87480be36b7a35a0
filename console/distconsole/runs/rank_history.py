"""The ranks' figures over time, by moment, in bounded memory.

A cell keeps the worst of its moment, as *badness*: the value, or its negative if little is bad.
``UNKNOWN`` is below all, and NaN above all.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import TypeVar

from msgspec import UNSET

from distconsole.model.run_events import GpuSample, RunEvents, Window
from distconsole.runs.detectors.slowness import own_ms
from distconsole.runs.figures import more_is_better

Column = TypeVar("Column")
UNKNOWN = -math.inf
BROKEN = math.inf
"""The badness of NaN and of infinities."""
NONE_KNOWN = array("f", [UNKNOWN])
RECENT_COLUMNS = 120
WHOLE_COLUMNS = 240
CELLS = 500_000
"""Ranks times moments of one quantity over the whole run; with very many ranks moments are longer."""
MAX_METRICS = 4
WINDOW_SECONDS = 1.0
"""A value covers at least this much time before it, and all the time of its steps if that is more."""
SAMPLED_RANKS = 128
"""The usual value at a moment is the median of at most this many ranks."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A figure to look at: its name in the grammar, how it reads, its unit behind a number, and True if little of it is bad."""

    name: str
    title: str
    unit: str = ""
    little_is_bad: bool = False

    def badness(self, value: float) -> float:
        if not math.isfinite(value):
            return BROKEN
        return -value if self.little_is_bad else value

    def value(self, badness: float) -> float:
        """Return the value behind ``badness``; NaN for one that was not finite."""
        if not math.isfinite(badness):
            return math.nan
        return -badness if self.little_is_bad else badness


STEP = Quantity("step", "step time", " ms")
OWN = Quantity("own", "own time", " ms")
"""A step without its waits for other ranks."""
DATA = Quantity("data", "wait for data", " ms")
RATE = Quantity("rate", "samples/s", "", little_is_bad=True)
USE = Quantity("use", "GPU use", " %", little_is_bad=True)
BUILT_IN = (STEP, OWN, DATA, RATE, USE)


@dataclass(slots=True)
class Grid:
    """The badness of one quantity: for each moment a column of all ranks.

    Attributes:
        places: Rank -> its place in each column.
    """

    places: dict[int, int] = field(default_factory=dict)
    columns: list[array[float]] = field(default_factory=list)

    def put(self, rank: int, column: int, badness: float, since: int) -> None:
        """Take a badness at ``column``, and at those from ``since`` (at least 0) on that have none of their own."""
        columns, place = self.columns, self.places.get(rank)
        if place is None:
            place = len(self.places)
            for cells in columns:
                cells.append(UNKNOWN)
            self.places[rank] = place  # last: rows of the table read while this is written
        while column >= len(columns):
            columns.append(NONE_KNOWN * len(self.places))
        cells = columns[column]
        before = cells[place]
        if badness > before:
            cells[place] = badness
        while before == UNKNOWN and column > since:
            column -= 1
            cells = columns[column]
            before = cells[place]
            if before == UNKNOWN:
                cells[place] = badness

    def at(self, column: int) -> Sequence[float]:
        """Return the badness of all ranks, in the order of ``places``."""
        found = self.columns[column : column + 1]
        return found[0] if found else NONE_KNOWN * len(self.places)

    def halve(self) -> None:
        self.columns = _pairs(self.columns, lambda a, b: array("f", map(max, a, b)))


@dataclass(slots=True)
class Track:
    """Moments of equal length, each with the worst of every rank and quantity.

    Attributes:
        first: The number of the moment in column 0, counted from the start.
        grids: By quantity; a grid may have fewer than ``columns``.
        steps: The last step that some rank had done in each moment.
    """

    seconds: float = 1.0
    first: int = 0
    columns: int = 0
    grids: dict[str, Grid] = field(default_factory=dict)
    steps: array[int] = field(default_factory=lambda: array("q"))

    def ranks(self, name: str) -> Collection[int]:
        return self.grids[name].places if name in self.grids else ()

    def reach(self, column: int, step: int) -> None:
        missing = column + 1 - len(self.steps)
        if missing > 0:  # a moment without progress has the step of the one before
            self.steps.extend([self.steps[-1] if self.steps else -1] * missing)
            self.columns = column + 1
        if step > self.steps[column]:
            self.steps[column] = min(step, 2**62)

    def forget_before(self, column: int) -> None:
        self.first += column
        self.columns = max(0, self.columns - column)
        del self.steps[:column]
        for grid in self.grids.values():
            del grid.columns[:column]

    def halve(self) -> None:
        """Make of two moments one, with the worst of both."""
        self.seconds *= 2
        self.columns = (self.columns + 1) // 2
        self.steps = array("q", _pairs(self.steps, max))
        for grid in self.grids.values():
            grid.halve()

    def row(self, name: str, rank: int, begin: int = 0) -> list[float]:
        return self.worst(name, (rank,), begin)

    def worst(self, name: str, ranks: Sequence[int], begin: int = 0) -> list[float]:
        grid = self.grids.get(name, Grid())
        places = [grid.places[rank] for rank in ranks if rank in grid.places]
        if not places:
            return [UNKNOWN] * (self.columns - begin)
        # One place twice, as it gives no tuple of one.
        taken = itemgetter(places[0], *places)
        return [max(taken(grid.at(column))) for column in range(begin, self.columns)]

    def rows(self, name: str, begin: int = 0) -> dict[int, tuple[float, ...]]:
        grid = self.grids[name]
        columns = map(grid.at, range(begin, self.columns))
        return dict(zip(grid.places, zip(*columns, strict=True), strict=True))

    def usual(self, name: str, column: int) -> float:
        """Return the median badness of the ranks at ``column``; ``UNKNOWN`` if none is known."""
        cells = self.grids[name].at(column)
        known = [
            each for each in cells[:: max(1, -(-len(cells) // SAMPLED_RANKS))] if each != UNKNOWN
        ]
        return median(known) if known else UNKNOWN


def _pairs(columns: Sequence[Column], worst: Callable[[Column, Column], Column]) -> list[Column]:
    """Return the worst of each pair of neighbours; one that is left over stays."""
    merged = [worst(*two) for two in zip(columns[::2], columns[1::2], strict=False)]
    return [*merged, *columns[len(columns) - len(columns) % 2 :]]


class RankHistory:
    """The fold of a run's windows and GPU samples: the last minutes by the second, the whole run more coarsely.

    Args:
        only: The quantities of windows that are wanted, over the whole run; none takes all there are.
        cells: Ranks times moments of one quantity over the whole run at most.
    """

    def __init__(self, *only: Quantity, cells: int = CELLS) -> None:
        self.started: float | None = None
        self.recent = Track()
        self.whole = Track()
        self.quantities: dict[str, Quantity] = {}
        """Name -> values of at least one rank."""
        self.hosts: dict[int, str] = {}
        self._only = {each.name for each in only}
        self._cells = cells

    @property
    def known(self) -> list[str]:
        built_in = [each.name for each in BUILT_IN if each.name in self.quantities]
        return built_in + [each.name for each in self.quantities.values() if each not in BUILT_IN]

    def apply(self, event: RunEvents) -> None:
        if isinstance(event, Window):
            self._window(event)
        elif isinstance(event, GpuSample) and event.rank is not UNSET and event.util is not None:
            self.hosts.setdefault(event.rank, event.host)
            if not self._only:
                self._put(event.rank, event.t, -1, {USE.name: (USE, event.util)})

    def reach(self, t: float) -> None:
        """Add the moment ``t`` (UNIX seconds), if the run has any."""
        if self.started is not None:
            self.whole.reach(max(0, self._column(self.whole, t, self._halve)), -1)

    def _window(self, event: Window) -> None:
        self.hosts[event.rank] = event.host
        own = None if event.waited_ms is None else own_ms(event)
        measured = (
            (STEP, event.step_ms_mean),
            (OWN, own),
            (DATA, event.data_ms),
            (RATE, event.samples_s),
        )
        values = {
            quantity.name: (quantity, value)
            for quantity, value in measured
            if value is not None and (not self._only or quantity.name in self._only)
        }
        for name, value in event.metrics.items() if not self._only else ():
            key = f"metric {name}"
            quantity = self.quantities.get(key) or self._new_metric(key, name)
            if quantity is not None:
                values[key] = quantity, value
        took = event.steps * (event.step_ms_mean or 0.0) / 1000
        self._put(event.rank, event.t, event.step, values, took)

    def _new_metric(self, key: str, name: str) -> Quantity | None:
        metrics = sum(known.startswith("metric ") for known in self.quantities)
        if metrics >= MAX_METRICS:
            return None
        quantity = self.quantities[key] = Quantity(name, name, "", more_is_better(name))
        return quantity

    def _put(
        self,
        rank: int,
        t: float,
        step: int,
        values: dict[str, tuple[Quantity, float]],
        seconds: float = 0.0,
    ) -> None:
        if not math.isfinite(t) or not values:
            return
        covered = max(WINDOW_SECONDS, seconds) if math.isfinite(seconds) else WINDOW_SECONDS
        if self.started is None:
            self.started = t
        for key, (quantity, _) in values.items():
            self.quantities.setdefault(key, quantity)
        told = [(key, quantity.badness(value)) for key, (quantity, value) in values.items()]
        tracks = (self.whole, self._halve), (self.recent, _shift)
        for track, make_room in tracks[:1] if self._only else tracks:
            column = self._column(track, t, make_room)
            if column < 0:
                continue
            track.reach(column, step)
            since = max(0, column - math.ceil(covered / track.seconds))
            for key, badness in told:
                grid = track.grids.get(key) or track.grids.setdefault(key, Grid())
                grid.put(rank, column, badness, since)

    def _column(self, track: Track, t: float, make_room: Callable[[Track, int], bool]) -> int:
        """Return the column of ``t``, below 0 if it is too old."""
        while True:
            column = int((t - (self.started or 0.0)) / track.seconds) - track.first
            if column < track.columns or not make_room(track, column):
                return column

    def _halve(self, track: Track, column: int) -> bool:
        ranks = max(1, len(self.hosts))
        if column < max(60, min(WHOLE_COLUMNS, self._cells // ranks)):
            return False
        track.halve()
        return True


def _shift(track: Track, column: int) -> bool:
    if column < RECENT_COLUMNS + RECENT_COLUMNS // 4:
        return False
    track.forget_before(column + 1 - RECENT_COLUMNS)
    return True
