"""Pairs of hosts as cells to draw, and how many cells fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from statistics import median

import msgspec

from distconsole.model.reports import PairReport

SLOW_RATE = 0.7
"""Share of the median rate, as in the check of bandwidth."""
SLOW_TRIP, SLOW_TRIP_US = 20.0, 20_000.0
"""A slow round trip: this multiple of the median and at least this long, as in net.rtt."""

MANY = 3
"""A host with this many pairs in trouble is taken for their cause."""

Pair = tuple[str, str]


class State(IntEnum):
    """The state of a pair; larger is worse, and 0 to 3 are growing knowledge."""

    SELF = -1
    UNTRIED = 0
    REACHED = 1
    TIMED = 2
    MEASURED = 3
    SLOW = 4
    PARTIAL = 5
    DEAD = 6

    @property
    def trouble(self) -> bool:
        return self >= State.SLOW


LOOKS: Mapping[State, tuple[str, str, str]] = {
    State.SELF: ("╲", "faint", ""),
    State.UNTRIED: ("·", "faint", "not tried"),
    State.REACHED: ("░", "good", "reached"),
    State.TIMED: ("▒", "good", "round trip known"),
    State.MEASURED: ("▓", "good", "rate known"),
    State.SLOW: ("▲", "warn", "slow"),
    State.PARTIAL: ("!", "warn", "some ports lost"),
    State.DEAD: ("✗", "bad", "no connection"),
}
"""State -> its shape, the meaning of its colour, and words."""


@dataclass(frozen=True)
class Pairs:
    """The known state of the pairs of ``hosts``, in their order."""

    hosts: tuple[str, ...] = ()
    known: Mapping[Pair, PairReport] = field(default_factory=dict)

    @cached_property
    def states(self) -> dict[Pair, State]:
        rates = [p.gbit_s for p in self.known.values() if p.gbit_s is not None]
        trips = [p.rtt_us for p in self.known.values() if p.rtt_us is not None]
        rate = median(rates) if len(rates) > 1 else 0.0
        trip = median(trips) if len(trips) > 1 else float("inf")
        return {pair: _state(report, rate, trip) for pair, report in self.known.items()}

    def state(self, source: str, target: str) -> State:
        if source == target:
            return State.SELF
        return self.states.get((source, target), State.UNTRIED)

    @cached_property
    def troubled(self) -> tuple[str, ...]:
        """Hosts that explain the pairs in trouble: a host with many of them, without its peers."""
        left = {pair for pair, state in self.states.items() if state.trouble}
        found: set[str] = set()
        while left:
            counts = Counter(name for pair in left for name in pair)
            worst, count = counts.most_common(1)[0]
            mine = {pair for pair in left if worst in pair}
            found |= {worst} if count >= MANY else {name for pair in mine for name in pair}
            left -= mine
        return tuple(name for name in self.hosts if name in found)

    @cached_property
    def are_rated(self) -> bool:
        return any(report.gbit_s is not None for report in self.known.values())

    def figure(self, source: str, target: str) -> str:
        """Return the bandwidth of a pair in Gbit/s if bandwidths are known, else its round trip in µs."""
        report = self.known.get((source, target))
        value = None
        if report is not None:
            value = report.gbit_s if self.are_rated else report.rtt_us
        return "" if value is None else f"{value:.3g}"

    @cached_property
    def counts(self) -> Counter[State]:
        return Counter(self.states.values())

    def told(self, source: str, target: str) -> str:
        if source == target:
            return source
        report = self.known.get((source, target))
        where = f"{source} -> {target}: "
        if report is None:
            return f"{where}not tried yet"
        facts = [report.error] if report.error else []
        if report.rtt_us is not None:
            facts.append(f"round trip {report.rtt_us:.0f} µs")
        if report.gbit_s is not None:
            facts.append(f"{report.gbit_s:.3g} Gbit/s")
        if self.state(source, target) is State.SLOW:
            facts.append("slow next to the others")
        return where + (", ".join(facts) or "reached")


def _state(report: PairReport, rate: float, trip: float) -> State:
    if not report.reachable and report.rtt_us is None:
        return State.DEAD
    if report.error:
        return State.PARTIAL
    if report.gbit_s is not None:
        return State.SLOW if report.gbit_s < SLOW_RATE * rate else State.MEASURED
    if report.rtt_us is None:
        return State.REACHED
    late = report.rtt_us > max(SLOW_TRIP * trip, SLOW_TRIP_US)
    return State.SLOW if late else State.TIMED


def update_pair(known: PairReport | None, new: PairReport, stage: str) -> PairReport:
    if known is None or stage != "bandwidth":
        return new
    return msgspec.structs.replace(known, gbit_s=new.gbit_s)


class Grain(IntEnum):
    """Ways to turn hosts into cells; the first that fits is taken."""

    WHOLE = 0
    """A line a host."""
    TROUBLED = 1
    """Only the lines of hosts in trouble; a cell is the worse of both directions."""
    BLOCKS = 2
    """Several hosts a cell, which shows their worst pair."""


Group = tuple[str, ...]
"""The hosts of one line or column."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The hosts of each line and column, with columns for names and for a cell."""

    grain: Grain
    rows: tuple[Group, ...]
    columns: tuple[Group, ...]
    label_width: int
    width: int


MAX_LABEL = 14
FIGURE_CELLS = 7
"""Least cells of a pair with its figure."""


def frame_for(pairs: Pairs, columns: int, lines: int) -> Frame:
    hosts = pairs.hosts
    count = len(hosts)
    label = min(MAX_LABEL, max((len(name) for name in hosts), default=0)) + 5
    room, lines = max(1, columns - label), max(1, lines)
    single = tuple((name,) for name in hosts)
    across = single if count <= room else _blocks(hosts, room)
    width = 2 if 2 * len(across) <= room else 1
    if len(across) == count and count <= lines:
        width = FIGURE_CELLS if FIGURE_CELLS * count <= room else width
        return Frame(Grain.WHOLE, single, single, label, width)
    troubled = tuple((name,) for name in pairs.troubled)
    if troubled and len(troubled) <= lines:
        return Frame(Grain.TROUBLED, troubled, across, label, width)
    blocks = _blocks(hosts, min(lines, room))
    return Frame(Grain.BLOCKS, blocks, blocks, label, 2 if 2 * len(blocks) <= room else 1)


def _blocks(hosts: Group, most: int) -> tuple[Group, ...]:
    each = -(-len(hosts) // max(1, most))
    return tuple(hosts[start : start + each] for start in range(0, len(hosts), each))


def cell_of(pairs: Pairs, frame: Frame, row: int, column: int) -> tuple[State, Pair]:
    """Return the state of a cell and its pair: the worst, else the least known."""
    sources, targets = frame.rows[row], frame.columns[column]
    inside = [(a, b) for a in sources for b in targets if a != b]
    if frame.grain is Grain.TROUBLED:
        inside += [(b, a) for a, b in inside]
    if not inside:
        return State.SELF, (sources[0], targets[0])
    found = ((pairs.state(*pair), pair) for pair in inside)
    return max(found, key=lambda cell: cell[0] if cell[0].trouble else -cell[0])
