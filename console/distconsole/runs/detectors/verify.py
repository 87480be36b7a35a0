"""Checks that the ranks of a run agree: checksums of their parameters, optimizers and batches at equal steps.

Each rank reports its own (``run --verify-sync``); comparing them here costs the job no collective.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from distconsole.model.findings import Severity
from distconsole.model.run_events import RunFinding
from distconsole.rpc.frames import CheckEntry
from distconsole.runs.detectors.conclusions import NOT_FINITE
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text
from distconsole.runs.pace import MAX_WAIT_SECONDS

MAX_PENDING_CHECKS = 4096
MIN_PENDING_STEPS = 16
"""Steps wait for ranks until this many checks in all; beyond that the oldest is judged as it is.

A window brings all the checks of one rank before those of the next, of fast steps hundreds.
"""

SAME_BATCHES = 2
"""So many different batches that two ranks both read are no coincidence."""

MAX_LAYOUTS = 256
DETAIL_DIGITS = 8
DESYNC = "run.desync"


Sides = tuple[tuple[int, ...], tuple[int, ...]]


class SyncWatch:
    """Collects checks by step until every rank that lives has given its own.

    A host of ``hosts`` without a report of a rank counts as awaited, like a rank.
    """

    def __init__(self, ranks: RanksSeen, hosts: Iterable[str] = ()) -> None:
        self._ranks = ranks
        self._unheard = set(hosts)
        self._alive: dict[int, bool] = {}
        self._last: dict[int, int] = {}
        self._pending: dict[int, dict[int, CheckEntry]] = {}
        self._since: dict[int, float] = {}
        self._judged = -1
        self._names: dict[int, tuple[str, ...]] = {}
        self._same: dict[tuple[int, ...], set[str]] = defaultdict(set)
        self._told: set[str] = set()
        """Differences that were found; each is reported once in a run."""

    def heard_of(self, host: str) -> None:
        """Note that a host has reported a rank, or the run's end."""
        self._unheard.discard(host)

    def rank_is(self, rank: int, t: float, *, alive: bool) -> Iterator[RunFinding]:
        """Note that a rank lives or ended, and yield the comparisons that are now complete."""
        self._alive[rank] = alive
        if not alive and self._pending:
            yield from self._ready(t)

    def add(self, check: CheckEntry, t: float) -> Iterator[RunFinding]:
        """Add one rank's check, of time ``t`` in seconds, and yield the findings of comparisons that it completes."""
        if check.names is not None and len(self._names) < MAX_LAYOUTS:
            self._names[check.layout] = check.names
        yield from self._of_one_rank(check, t)
        rank = check.rank
        self._alive.setdefault(rank, True)
        self._last[rank] = max(self._last.get(rank, -1), check.step)
        if check.step > self._judged:
            self._pending.setdefault(check.step, {})[rank] = check
            self._since.setdefault(check.step, t)
        yield from self._ready(t)

    def begin_again(self, t: float) -> Iterator[RunFinding]:
        """Judge the remaining checks: every rank starts again and counts its steps from 0."""
        yield from self.flush(t)
        self._judged = -1
        self._alive = dict.fromkeys(self._alive, True)
        self._last.clear()
        self._same.clear()

    def flush(self, t: float) -> Iterator[RunFinding]:
        """Judge the remaining checks, as far as they came."""
        for step in sorted(self._pending):
            yield from self._judge(step, t)

    def _ready(self, t: float) -> Iterator[RunFinding]:
        most = max(MIN_PENDING_STEPS, MAX_PENDING_CHECKS // max(1, len(self._alive)))
        for step in sorted(self._pending):
            awaited = bool(self._unheard) or any(
                alive and self._last.get(rank, -1) < step for rank, alive in self._alive.items()
            )
            waits = t - self._since[step] <= MAX_WAIT_SECONDS
            if awaited and waits and len(self._pending) <= most:
                return
            yield from self._judge(step, t)

    def _judge(self, step: int, t: float) -> Iterator[RunFinding]:
        checks = self._pending.pop(step)
        del self._since[step]
        self._judged = step
        yield from self._worlds(checks, t)
        yield from self._gradients(step, checks, t)
        groups: dict[int, list[CheckEntry]] = defaultdict(list)
        for check in checks.values():
            if check.parameters is not None:
                groups[check.layout].append(check)
        for group in groups.values():
            yield from self._replicas(step, sorted(group, key=lambda check: check.rank), t)
        yield from self._batches(step, checks, t)

    def _tell(
        self, kind: str, t: float, check: str, summary: str, ranks: Sequence[int], **more: Any
    ) -> Iterator[RunFinding]:
        if kind not in self._told:
            self._told.add(kind)
            yield self._ranks.finding(t, check, summary, ranks, **more)

    def _of_one_rank(self, check: CheckEntry, t: float) -> Iterator[RunFinding]:
        if check.same_epoch:
            yield from self._tell(
                "epoch",
                t,
                "run.same_epoch",
                f"two passes over the data were in the same order (seen at step {check.step})",
                (check.rank,),
                expected="another order in every epoch",
                hint="call sampler.set_epoch(epoch) before each pass over the DataLoader",
            )

    def _gradients(
        self, step: int, checks: Mapping[int, CheckEntry], t: float
    ) -> Iterator[RunFinding]:
        """Name ranks with gradients that are not finite; if all have them, their origin is unknown."""
        bad = {rank: check for rank, check in checks.items() if check.bad_gradient is not None}
        if not bad:
            return
        first = min(bad.values(), key=lambda check: check.rank)
        name = self._name(first.layout, first.bad_gradient or 0)
        on, ranks = f"on {ranks_text(sorted(bad))}", tuple(sorted(bad))
        if len(bad) == len(checks) > 1:
            on = f"on all {len(bad)} ranks, which exchange it: any of them may have made it"
            ranks = ()
        yield from self._tell(
            "gradient",
            t,
            NOT_FINITE,
            f"the gradient{f' of {name}' if name else ''} is not finite at step {step} {on}",
            ranks,
            expected="finite gradients",
            hint="look for a division by zero, a root or logarithm of 0, and at the learning rate",
        )

    def _replicas(self, step: int, group: list[CheckEntry], t: float) -> Iterator[RunFinding]:
        """Compare the parameters of ranks that have the same ones, else their optimizers' states."""
        severity = Severity.FAIL if all(check.wrapped for check in group) else Severity.WARN
        sides = _sides({check.rank: check.parameters for check in group})
        if sides is not None:
            self._told.add("state")  # it follows from the parameters
            if all(check.place is None for check in group):
                yield from self._alone(step, tuple(sorted((*sides[0], *sides[1]))), t)
            else:
                yield from self._different(step, group, sides, severity, t)
        elif (sides := _sides({check.rank: check.state for check in group})) is not None:
            ranks, others = sides
            yield from self._tell(
                "state",
                t,
                DESYNC,
                f"the optimizer of {ranks_text(ranks)} is in another state than that of "
                f"{ranks_text(others)} after step {step}, with equal parameters",
                ranks,
                severity=severity,
                expected="equal optimizer state on all ranks",
                hint="load the checkpoint of the optimizer on every rank, or broadcast its state",
            )

    def _alone(self, step: int, ranks: tuple[int, ...], t: float) -> Iterator[RunFinding]:
        return self._tell(
            "alone",
            t,
            DESYNC,
            f"{ranks_text(ranks)} train each by themselves: no process group is initialised, and "
            f"their parameters differ after step {step}",
            ranks,
            expected="one training over all ranks",
            hint="call torch.distributed.init_process_group and wrap the model in "
            "DistributedDataParallel, or run it with --nproc 1",
        )

    def _different(
        self, step: int, group: list[CheckEntry], sides: Sides, severity: Severity, t: float
    ) -> Iterator[RunFinding]:
        ranks, others = sides
        of_rank = {check.rank: check for check in group}
        one, other = _details(of_rank[ranks[0]]), _details(of_rank[others[0]])
        differing = [place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        name = self._name(group[0].layout, differing[0]) if differing else ""
        first = f"; first in {name}" if name else ""
        if step == 0 and severity is Severity.WARN:
            hint = (
                "begin with equal weights: DistributedDataParallel sends those of rank 0 to all; by "
                "hand, broadcast every parameter after the model is made (Horovod: broadcast_parameters "
                "after broadcast_optimizer_state, which takes a step)"
            )
        else:
            hint = (
                "some update was not the same on all ranks: look for gradients that are not reduced "
                "(no_sync, a part outside the wrapped model), a random choice in the model's code, "
                "or another learning rate on one rank"
            )
        return self._tell(
            "parameters",
            t,
            DESYNC,
            f"{ranks_text(ranks)} and {ranks_text(others)} have different parameters "
            f"after step {step}{first}",
            ranks,
            severity=severity,
            seen=f"{len(differing)} of {len(one)} differ" if one else "",
            expected="equal parameters on all ranks that train one model",
            hint=hint,
        )

    def _worlds(self, checks: Mapping[int, CheckEntry], t: float) -> Iterator[RunFinding]:
        # Ranks that the script spawns are known only once they train: a larger world is no fault.
        alive = sum(self._alive.values())
        for rank, check in sorted(checks.items()):
            place, size = check.place or (rank, math.inf)
            if size < alive or (size == alive and place != rank):
                yield from self._tell(
                    "world",
                    t,
                    "run.world",
                    f"{ranks_text((rank,))} is in a process group of another shape than planned",
                    (rank,),
                    seen=f"a world of {size}",
                    expected=f"the rank that was planned, in a world of {alive}",
                    hint="take rank and world size from RANK and WORLD_SIZE, not from the script's own "
                    "count",
                )

    def _batches(
        self, step: int, checks: Mapping[int, CheckEntry], t: float
    ) -> Iterator[RunFinding]:
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
                yield from self._tell(
                    "batch",
                    t,
                    "run.same_batch",
                    f"{ranks_text(ranks)} read the same batches (seen until step {step})",
                    ranks,
                    expected="every rank reads its own share of the data",
                    hint="give the DataLoader a DistributedSampler: sampler=DistributedSampler(dataset)",
                )
        if "batch" in self._told or len(self._same) > MAX_LAYOUTS:
            self._same.clear()

    def _name(self, layout: int, place: int) -> str:
        names = self._names.get(layout, ())
        return names[place] if place < len(names) else ""


def _sides(said: Mapping[int, str | None]) -> Sides | None:
    """Return the ranks that differ from the most, and the most (of equal sides that of the lowest rank); None if all agree."""
    sizes = Counter(said.values())
    if len(sizes) < 2:
        return None
    most = max(sizes, key=lambda one: (sizes[one], -min(r for r in said if said[r] == one)))
    agree = tuple(rank for rank in sorted(said) if said[rank] == most)
    return tuple(rank for rank in sorted(said) if said[rank] != most), agree


def _details(check: CheckEntry) -> list[str]:
    text = check.details or ""
    return [text[at : at + DETAIL_DIGITS] for at in range(0, len(text), DETAIL_DIGITS)]
