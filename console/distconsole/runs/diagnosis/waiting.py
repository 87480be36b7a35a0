"""Which ranks wait for which: from the collectives that each has enqueued to the ranks that wait for none.

In a process group a rank waits in its first collective that is not complete, for all members that have
not enqueued it yet. Following this from rank to rank ends at those that wait for none: the culprits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from msgspec import structs

from distconsole.model.diagnosis.calls import Call, Collective, Operation
from distconsole.runs.diagnosis.stacks import Does, operation_of, what_it_does


class Ranks(tuple[int, ...]):  # noqa: SLOT001 - a tuple's subclass cannot have slots
    """Ranks in order with a cached hash: a group of 8,192 is looked up as often as it has ranks."""

    _hash: int | None = None

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = super().__hash__()
        return self._hash


GroupKey = tuple[str, Ranks, str]
"""Name, ranks and backend: a group of "cpu:gloo,cuda:nccl" counts the collectives of each backend from 1."""
DEFAULT_GROUPS = ("0", "default_pg", "default")
BY_OWN_SIZES = ("all_to_all", "alltoall", "gather", "scatter", "send", "recv", "coalesced")
"""Operations whose members may give different sizes; ``all_gather`` and ``reduce_scatter`` are not of them."""
FAMILIES = (
    *("newgroup", "allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "barrier"),
    *("gather", "scatter", "reduce", "isend", "irecv", "send", "recv"),
)
"""Operations that never meet one of another family, however a function or a record calls them; the longer word first."""
IDLE_SHARE = 0.5
"""Of a processor: a rank that uses less waits in backward, and does not compute."""


class Wait(NamedTuple):
    """Wait of a rank: the group, and the number of its first incomplete collective."""

    group: GroupKey
    seq: int
    op: str


@dataclass
class WaitGraph:
    """The waits of all ranks that answer.

    Args:
        calls: By rank.
        world: All ranks of the run; those without a call may be waited for, too.
    """

    calls: Mapping[int, Call]
    world: frozenset[int]
    waits: dict[int, list[Wait]] = field(default_factory=dict)
    """Rank -> its wait, by its own records."""
    by_stack: dict[int, str] = field(default_factory=dict)
    """Rank -> operation that only its stack shows it in."""
    last: dict[GroupKey, dict[int, Collective]] = field(default_factory=dict)
    """Group -> rank -> the last one that it has enqueued there."""
    _ranks_of: dict[int, Ranks] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank, call in self.calls.items():
            if not call.alive:
                continue
            for each in filter(None, map(without_p2p, call.collectives)):
                key = self._key_of(each)
                self.last.setdefault(key, {})[rank] = each
                if is_pending(each):
                    self.waits.setdefault(rank, []).append(Wait(key, first_pending(each), each.op))
            if rank not in self.waits and (op := stack_waits_in(call)):
                self.by_stack[rank] = op

    def _key_of(self, collective: Collective) -> GroupKey:
        # By identity: agents mostly send one value for a group (``rpc.roll_calls``).
        key = id(collective.ranks)
        if key not in self._ranks_of:
            self._ranks_of[key] = Ranks(sorted(collective.ranks))
        return collective.group or collective.name, self._ranks_of[key], collective.backend

    @cached_property
    def waiting(self) -> frozenset[int]:
        return frozenset(self.waits) | frozenset(self.by_stack)

    def members(self, group: GroupKey) -> frozenset[int]:
        """Return the ranks of a group: as recorded, all for the default one, else the ranks that know it."""
        name, ranks, _ = group
        if ranks:
            return self.world.intersection(ranks)
        return self.world if name in DEFAULT_GROUPS else frozenset(self.last[group])

    def absent(self, wait: Wait) -> frozenset[int]:
        known = self._absent.get((wait.group, wait.seq))
        if known is None:
            last = self.last[wait.group]
            known = frozenset(
                rank
                for rank in self.members(wait.group)
                if not (rank in last and last[rank].seq >= wait.seq)
                and not (rank not in last and rank in self.by_stack and not self._records(rank))
            )
            self._absent[wait.group, wait.seq] = known
        return known

    def _records(self, rank: int) -> bool:
        return bool(self.calls[rank].collectives)

    @cached_property
    def _absent(self) -> dict[tuple[GroupKey, int], frozenset[int]]:
        return {}

    @cached_property
    def ends(self) -> tuple[frozenset[int], tuple[int, ...]]:
        seen: set[int] = set()
        ends: set[int] = set()
        followed: set[tuple[GroupKey, int]] = set()
        queue = list(self.waits)
        awaited: set[int] = set()
        while queue:
            rank = queue.pop()
            if rank in seen:
                continue
            seen.add(rank)
            away: set[int] = set()
            for wait in self.waits.get(rank, ()):
                missing = self.absent(wait)
                away |= missing
                if (wait.group, wait.seq) not in followed:
                    followed.add((wait.group, wait.seq))
                    queue += missing
                    awaited |= missing
            if not away - {rank}:
                ends.add(rank)
        blocked = ends & awaited
        return frozenset(blocked), () if blocked else self._circle(awaited)

    def _circle(self, awaited: set[int]) -> tuple[int, ...]:
        """Return ranks that wait for each other; nothing if none does."""
        for start in sorted(awaited):
            path: list[int] = []
            rank: int | None = start
            while rank is not None and rank not in path:
                path.append(rank)
                away = sorted({m for w in self.waits.get(rank, ()) for m in self.absent(w)})
                rank = next((m for m in away if m in self.waits), None)
            if rank is not None:
                return tuple(path[path.index(rank) :])
        return ()

    def most(self, about: Iterable[int] = ()) -> tuple[Wait | None, frozenset[int]]:
        """Return the wait of most ranks, and those ranks with the ones whose stacks alone show the same wait.

        ``about``: of the waits for these ranks, else of those in their groups; None and no ranks without one.
        """
        counts = Counter(wait for waits in self.waits.values() for wait in waits)
        if ranks := frozenset(about):
            for_them = {wait: n for wait, n in counts.items() if self.absent(wait) & ranks}
            with_them = {w: n for w, n in counts.items() if self.members(w.group) & ranks}
            if counts and not (for_them or with_them):
                return None, frozenset()
            counts = Counter(for_them or with_them)
        if not counts:
            return None, self._most_by_stack(ranks)
        best = max(counts, key=lambda wait: (counts[wait], -wait.seq, wait.op, wait.group))
        waiting = {rank for rank, waits in self.waits.items() if best in waits}
        members, families = self.members(best.group), ("", family_of(best.op))
        unrecorded = {
            rank
            for rank, op in self.by_stack.items()
            if rank in members and family_of(op) in families and not self._records(rank)
        }
        return best, frozenset(waiting | unrecorded)

    def _most_by_stack(self, but: frozenset[int]) -> frozenset[int]:
        """Return the ranks that wait in the operation that most stacks show, which may be a backward; ``but`` these."""
        alike: dict[str, set[int]] = {}
        for rank, op in self.by_stack.items():
            if rank not in but:
                alike.setdefault(family_of(op), set()).add(rank)
        most = max(alike, key=lambda family: (len(alike[family]), family), default="")
        return frozenset(alike.get(most, set()) | alike.get("", set()))

    def first_mismatch(
        self, group: GroupKey
    ) -> tuple[int, list[tuple[Operation, list[int]]]] | None:
        """Return the lowest number of ``group`` at which ranks enqueued operations that never meet, and the ranks of each.

        Past numbers count if one of the ranks has not completed its own: it never will.
        """
        last = self.last[group]
        pending = {
            seq
            for each in last.values()
            if is_pending(each)
            for seq in (each.seq, *(one.seq for one in each.recent if not one.p2p))
            if seq >= first_pending(each)
        }
        for seq in sorted(pending):
            kinds = differing(self, Wait(group, seq, ""), self.members(group) & last.keys())
            if len(kinds) > 1:
                return seq, kinds
        return None

    def operation_at(self, rank: int, group: GroupKey, seq: int) -> Operation | None:
        last = self.last[group].get(rank)
        if last is None:
            return None
        told = (each for each in (last, *last.recent) if not each.p2p)
        return next((each for each in told if each.seq == seq), None)


def group_text(name: str) -> str:
    """Return how a process group is called: ``default_pg`` or ``group tp0``."""
    if name in DEFAULT_GROUPS:
        return "default_pg"
    return f"group {name}" if name else "a group without a name"


def without_p2p(collective: Collective) -> Collective | None:
    """Return the last operation of a group that is of all its ranks; None if none is known."""
    if not collective.p2p:
        return collective
    others = [each for each in collective.recent if not each.p2p]
    if not others:
        return None
    last, *before = others
    told = {name: getattr(last, name) for name in Operation.__struct_fields__}
    return structs.replace(collective, **told, recent=tuple(before))


def family_of(op: str) -> str:
    """Return the one of ``FAMILIES`` that an operation is of; empty if its name does not show it, as of a backward."""
    name = op.replace("_", "").lower()
    return next((family for family in FAMILIES if family in name), "")


def is_pending(collective: Collective) -> bool:
    if collective.done_seq is not None:
        return collective.done_seq < collective.seq
    return collective.state in ("scheduled", "started")


def first_pending(collective: Collective) -> int:
    if collective.done_seq is None:
        return collective.seq
    if collective.done_seq < 0:
        return min(each.seq for each in (collective, *collective.recent) if not each.p2p)
    return min(collective.seq, collective.done_seq + 1)


def stack_waits_in(call: Call) -> str:
    """Return the operation in which a rank waits by its stack; empty if it computes, or is elsewhere."""
    does = what_it_does(call)
    if does is not Does.WAITS:
        return ""
    op = operation_of(call.frames)
    busy = call.main_cpu_s is not None and call.over_s
    if op == "backward" and busy and (call.main_cpu_s or 0) > IDLE_SHARE * (call.over_s or 1):
        return ""
    return op


def payload_key(operation: Operation) -> tuple[object, ...]:
    """Return the values that must be equal on all members of a group in one collective."""
    own = any(word in operation.op for word in BY_OWN_SIZES) and not operation.op.startswith(
        (
            "all_gather",
            "allgather",
            "_all_gather",
            "_allgather",
            "reduce_scatter",
            "_reduce_scatter",
        )
    )
    sizes = () if own or "barrier" in operation.op else operation.input_sizes
    return operation.op, sizes, operation.input_dtypes if sizes else ()


def differing(
    graph: WaitGraph, wait: Wait, ranks: Iterable[int]
) -> list[tuple[Operation, list[int]]]:
    """Return the operations that ``ranks`` have enqueued as that number, the most ranks first; one entry if all agree."""
    kinds: dict[tuple[object, ...], tuple[Operation, list[int]]] = {}
    for rank in sorted(ranks):
        operation = graph.operation_at(rank, wait.group, wait.seq)
        if operation is not None:
            kinds.setdefault(payload_key(operation), (operation, []))[1].append(rank)
    return sorted(kinds.values(), key=lambda kind: -len(kind[1]))
