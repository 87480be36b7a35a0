"""Whether the ranks come together to the world that was planned: told by what each says of its start. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import NamedTuple

from distconsole.rpc.frames import PhaseEntry

GATHER_SECONDS, SKEW_SECONDS = 3.0, 10.0
"""Ranks of which one thing is true are told of together: after so long once every rank that lives has come
so far, and after the longer time in any case."""

WAIT_SECONDS, LONGER = 30.0, 3.0
"""The ranks wait too long for each other after so many seconds without a further one that asks for the
group, and after this multiple of what that took in an attempt before."""


class Kind(StrEnum):
    """What is wrong."""

    OTHER_WORLD = "other world"
    OTHER_RANK = "other rank"
    WAITS = "waits"
    ALONE = "alone"


class Apart(NamedTuple):
    """Ranks that do not come together as planned, told once in an attempt.

    Attributes:
        ranks: Those that it is about, in order.
        world: The world size that they ask for or have; 0 where unknown.
        planned: The one that was planned; 0 where unknown.
        seconds: How long they have waited.
        missing: Ranks that live and have not asked for the group.
        group_rank: What the first of them is in its group; -1 where unknown.
    """

    kind: Kind
    ranks: tuple[int, ...]
    world: int = 0
    planned: int = 0
    seconds: float = 0.0
    missing: tuple[int, ...] = ()
    group_rank: int = -1


class WorldWatch:
    """Collects what ranks say of their way to the first step."""

    def __init__(self) -> None:
        self._usual_seconds = 0.0
        self._forget()

    def _forget(self) -> None:
        self._asked: dict[int, float] = {}
        self._joined: set[int] = set()
        self._stepped: set[int] = set()
        self._world = self._planned = 0
        self._wrong: dict[Kind, dict[int, PhaseEntry]] = {}
        self._since: dict[Kind, float] = {}
        self._told: set[Kind] = set()

    def begin_again(self) -> None:
        """Take that every rank starts anew."""
        self._forget()

    def add(self, entry: PhaseEntry, t: float) -> None:
        """Take that a rank reached a phase, at ``t`` in UNIX seconds."""
        rank = entry.rank
        if entry.phase == "rendezvous":
            self._asked[rank] = t
            self._world, self._planned = entry.world or 0, entry.planned or 0
        elif entry.phase == "init_process_group":
            self._joined.add(rank)
            self._wrong.get(Kind.ALONE, {}).pop(rank, None)
            if rank in self._asked:
                newest = max(self._asked.values())
                self._usual_seconds = max(self._usual_seconds, t - newest)
        elif entry.phase == "first_step":
            self._stepped.add(rank)
        if entry.alone and rank not in self._joined:
            self._is_wrong(Kind.ALONE, entry, t)
        if entry.planned is None:
            return
        if entry.world is not None and entry.world != entry.planned:
            self._is_wrong(Kind.OTHER_WORLD, entry, t)
        elif entry.group_rank is not None and entry.group_rank != rank:
            self._is_wrong(Kind.OTHER_RANK, entry, t)

    def due(self, living: Collection[int], world: int, t: float) -> Iterator[Apart]:
        """Yield what is known by now.

        Args:
            living: The ranks that live.
            world: How many ranks were heard of.
            t: Now, in UNIX seconds.
        """
        for kind, since in list(self._since.items()):
            come = self._stepped if kind is Kind.ALONE else self._asked.keys() | self._stepped
            patience = GATHER_SECONDS if come.issuperset(living) else SKEW_SECONDS
            if t - since >= patience:
                yield from self._tell(kind, world)
        waiting = self._asked.keys() - self._joined
        if not waiting or self._told.intersection((Kind.WAITS, Kind.OTHER_WORLD)):
            return
        seconds = t - max(self._asked.values())
        if seconds >= max(WAIT_SECONDS, LONGER * self._usual_seconds):
            self._told.add(Kind.WAITS)
            missing = tuple(sorted(set(living) - self._asked.keys() - self._joined))
            yield Apart(
                Kind.WAITS,
                tuple(sorted(waiting)),
                self._world,
                self._planned,
                t - min(self._asked[rank] for rank in waiting),
                missing,
            )

    def flush(self, world: int) -> Iterator[Apart]:
        """Yield what is known at the end of the run; ``world`` ranks were heard of."""
        for kind in list(self._since):
            yield from self._tell(kind, world)

    def _is_wrong(self, kind: Kind, entry: PhaseEntry, t: float) -> None:
        if kind not in self._told:
            self._wrong.setdefault(kind, {})[entry.rank] = entry
            self._since.setdefault(kind, t)

    def _tell(self, kind: Kind, world: int) -> Iterator[Apart]:
        found = self._wrong[kind]
        if not found or (kind is Kind.ALONE and world < 2):
            return
        del self._since[kind]
        self._told.add(kind)
        ranks = tuple(sorted(found))
        first = found[ranks[0]]
        of = first.group_rank
        yield Apart(
            kind,
            ranks,
            first.world or 0,
            first.planned or 0,
            group_rank=-1 if of is None else of,
        )
