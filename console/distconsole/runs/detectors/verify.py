"""Whether the ranks of a run agree: their own checks at equal steps, compared. Pure: no words, no clock.

Each rank tells checksums of its parameters, its optimizer's state and its batch (``run
--verify-sync``); comparing them here costs the job no collective.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from distconsole.rpc.frames import CheckEntry

MAX_PENDING_CHECKS = 4096
MIN_PENDING_STEPS = 16
"""Steps wait for ranks up to so many checks in all; beyond that the oldest is judged as it is.

A window brings all the checks of one rank before those of the next, of fast steps hundreds.
"""

MAX_WAIT_SECONDS = 10.0
"""A step waits so long for a rank that is behind."""

SAME_BATCHES = 2
"""So many different batches that two ranks both read are no coincidence."""

MAX_LAYOUTS = 256
DETAIL_DIGITS = 8


class Kind(StrEnum):
    """What is wrong."""

    PARAMETERS = "parameters"
    STATE = "optimizer state"
    ALONE = "alone"
    WORLD = "world"
    BATCH = "batch"
    EPOCH = "epoch"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One thing that is wrong, told once in a run.

    Attributes:
        ranks: Those that differ from the most, or that it is about; in order.
        others: Those that agree, where two sides are compared.
        name: The first parameter that differs, or whose gradient is not finite; empty if unknown.
        count: How many parameters differ, of ``of``; the world size found, of ``of`` planned.
        certain: Whether something in the ranks promises that they agree.
    """

    kind: Kind
    step: int
    ranks: tuple[int, ...]
    others: tuple[int, ...] = ()
    name: str = ""
    count: int = 0
    of: int = 0
    certain: bool = False


class SyncWatch:
    """Collects checks by step until every rank that lives has given its own.

    Args:
        hosts: Those of the run: one that has told of no rank yet is waited for like a rank.
    """

    def __init__(self, hosts: Iterable[str] = ()) -> None:
        self._unheard = set(hosts)
        self._alive: dict[int, bool] = {}
        self._last: dict[int, int] = {}
        self._pending: dict[int, dict[int, CheckEntry]] = {}
        self._since: dict[int, float] = {}
        self._judged = -1
        self._names: dict[int, tuple[str, ...]] = {}
        self._same: dict[tuple[int, ...], set[str]] = defaultdict(set)
        self._told: set[Kind] = set()

    def heard_of(self, host: str) -> None:
        """Note that a host has told of a rank, or of the run's end."""
        self._unheard.discard(host)

    def rank_is(self, rank: int, t: float, *, alive: bool) -> Iterator[Disagreement]:
        """Note that a rank lives or ended, and yield what nobody else is awaited for now."""
        self._alive[rank] = alive
        if not alive and self._pending:
            yield from self._ready(t)

    def add(self, check: CheckEntry, t: float) -> Iterator[Disagreement]:
        """Take one rank's check, of time ``t`` in seconds, and yield what it lets one conclude."""
        if check.names is not None and len(self._names) < MAX_LAYOUTS:
            self._names[check.layout] = check.names
        yield from self._alone_wrong(check)
        rank = check.rank
        self._alive.setdefault(rank, True)
        self._last[rank] = max(self._last.get(rank, -1), check.step)
        if check.step > self._judged:
            self._pending.setdefault(check.step, {})[rank] = check
            self._since.setdefault(check.step, t)
        yield from self._ready(t)

    def begin_again(self) -> Iterator[Disagreement]:
        """Yield what is left, for every rank starts anew and counts its steps from 0."""
        yield from self.flush()
        self._judged = -1
        self._alive = dict.fromkeys(self._alive, True)
        self._last.clear()
        self._same.clear()

    def flush(self) -> Iterator[Disagreement]:
        """Yield what is left, as far as it is known."""
        for step in sorted(self._pending):
            yield from self._judge(step)

    def _ready(self, t: float) -> Iterator[Disagreement]:
        for step in sorted(self._pending):
            awaited = bool(self._unheard) or any(
                alive and self._last.get(rank, -1) < step for rank, alive in self._alive.items()
            )
            waits = t - self._since[step] <= MAX_WAIT_SECONDS
            if awaited and waits and len(self._pending) <= self._max_pending_steps:
                return
            yield from self._judge(step)

    @property
    def _max_pending_steps(self) -> int:
        return max(MIN_PENDING_STEPS, MAX_PENDING_CHECKS // max(1, len(self._alive)))

    def _judge(self, step: int) -> Iterator[Disagreement]:
        checks = self._pending.pop(step)
        del self._since[step]
        self._judged = step
        for found in (*self._replicas(step, checks), *self._batches(step, checks)):
            if found.kind not in self._told:
                self._told.add(found.kind)
                yield found

    def _alone_wrong(self, check: CheckEntry) -> Iterator[Disagreement]:
        """Yield what one rank's check says without the others."""
        bad = check.bad_gradient
        if bad is not None and Kind.GRADIENT not in self._told:
            self._told.add(Kind.GRADIENT)
            name = self._name(check.layout, bad)
            yield Disagreement(Kind.GRADIENT, check.step, (check.rank,), name=name)
        if check.same_epoch and Kind.EPOCH not in self._told:
            self._told.add(Kind.EPOCH)
            yield Disagreement(Kind.EPOCH, check.step, (check.rank,))

    def _replicas(self, step: int, checks: Mapping[int, CheckEntry]) -> Iterator[Disagreement]:
        yield from self._worlds(step, checks)
        for group in _by_layout(checks.values()):
            sides = _sides({check.rank: check.parameters for check in group})
            if sides is not None:
                self._told.add(Kind.STATE)  # it follows from the parameters
                yield self._different(step, group, *sides)
            elif (sides := _sides({check.rank: check.state for check in group})) is not None:
                wrapped = all(check.wrapped for check in group)
                yield Disagreement(Kind.STATE, step, *sides, certain=wrapped)

    def _different(
        self,
        step: int,
        group: list[CheckEntry],
        ranks: tuple[int, ...],
        others: tuple[int, ...],
    ) -> Disagreement:
        if all(check.place is None for check in group):
            return Disagreement(Kind.ALONE, step, tuple(sorted((*ranks, *others))))
        of_rank = {check.rank: check for check in group}
        one, other = _details(of_rank[ranks[0]]), _details(of_rank[others[0]])
        differing = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        return Disagreement(
            Kind.PARAMETERS,
            step,
            ranks,
            others,
            name=self._name(group[0].layout, differing[0]) if differing else "",
            count=len(differing),
            of=len(one),
            certain=all(check.wrapped for check in group),
        )

    def _worlds(self, step: int, checks: Mapping[int, CheckEntry]) -> Iterator[Disagreement]:
        # Ranks that the script spawns are known only once they train: a larger world is no fault.
        alive = sum(self._alive.values())
        for rank, check in sorted(checks.items()):
            if check.place is None:
                continue
            place, size = check.place
            if size < alive or (size == alive and place != rank):
                yield Disagreement(Kind.WORLD, step, (rank,), count=size, of=alive)
                return

    def _batches(self, step: int, checks: Mapping[int, CheckEntry]) -> Iterator[Disagreement]:
        readers: dict[str, list[int]] = defaultdict(list)
        for rank, check in sorted(checks.items()):
            if check.batch is not None:
                readers[check.batch].append(rank)
        for batch, ranks in readers.items():
            if len(ranks) < 2:
                continue
            seen = self._same[tuple(ranks)]
            seen.add(batch)
            if len(seen) >= SAME_BATCHES:
                yield Disagreement(Kind.BATCH, step, tuple(ranks))
        if Kind.BATCH in self._told or len(self._same) > MAX_LAYOUTS:
            self._same.clear()

    def _name(self, layout: int, place: int) -> str:
        names = self._names.get(layout, ())
        return names[place] if place < len(names) else ""


def _by_layout(checks: Iterable[CheckEntry]) -> list[list[CheckEntry]]:
    """Return the checks that may be compared, together."""
    groups: dict[int, list[CheckEntry]] = defaultdict(list)
    for check in checks:
        if check.parameters is not None:
            groups[check.layout].append(check)
    return [sorted(group, key=lambda check: check.rank) for group in groups.values()]


def _sides(said: Mapping[int, str | None]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the ranks that differ from the most, and the most; None if all agree.

    Of two sides of one size, the one with the lowest rank counts as the most.
    """
    sizes = Counter(said.values())
    if len(sizes) < 2:
        return None
    most = max(sizes, key=lambda one: (sizes[one], -min(r for r in said if said[r] == one)))
    agree = tuple(rank for rank in sorted(said) if said[rank] == most)
    return tuple(rank for rank in sorted(said) if said[rank] != most), agree


def _details(check: CheckEntry) -> list[str]:
    text = check.details or ""
    return [text[at : at + DETAIL_DIGITS] for at in range(0, len(text), DETAIL_DIGITS)]
