"""Finds ranks that hold the others up, from their times at one moment, by a rank's own time: its step without its waits.

In data-parallel training every rank's step takes equally long, because the fast ones wait for the
slow one. If each rank reports its waits, the one with the longest own time is the slow
one, whatever engine it waits in. If none does, only the parts before the ranks meet differ, and of
two ranks it stays open which one works and which one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from math import isnan
from operator import sub
from statistics import median
from typing import NamedTuple

from distconsole.model.run_events import Window
from distconsole.runs import pace

STEP, REST = "step", "rest"
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"
PARTS = (STEP, DATA, FORWARD, BACKWARD, OPTIMIZER)
"""Parts of a step in which waits are measured, in the order of ``Window.waited_ms``."""


class Straggler(NamedTuple):
    """A rank that is slow, in which part of its steps, and since when; -1 if unknown.

    ``cost_ms`` is the time that every step would save without it; 0 if no rank waits for it.
    ``ranks`` are slow together, and ``hosts`` those of which they are all ranks, if they are;
    ``last_step`` is the last slow step; -1 while still slow.
    """

    rank: int
    part: str
    own_ms: float
    median_ms: float
    step_ms: float
    since_step: int = -1
    cost_ms: float = 0.0
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    last_step: int = -1

    @property
    def excess_ms(self) -> float:
        """Milliseconds a step over the median of the other ranks."""
        return self.own_ms - self.median_ms

    @property
    def together(self) -> tuple[int, ...]:
        return self.ranks or (self.rank,)

    @property
    def is_one(self) -> bool:
        return len(self.hosts or self.ranks) < 2

    @property
    def cost_share(self) -> float:
        return self.cost_ms / self.step_ms if self.step_ms > 0 else 0.0


def own_ms(window: Window) -> float:
    step, waited = window.step_ms_mean or 0.0, window.waited_ms
    return step if waited is None else step - waited[0]


class Times:
    """The ranks' times in a step at one moment, by part; a part without a rank is not known of it.

    Args:
        hosts: Rank -> its host.
        column: Returns the times of a part for all ranks of ``hosts``, or (True) their waits in it; NaN if unknown.
        noise_ms: Returns the usual change of a rank's own time from second to second.
    """

    def __init__(
        self,
        hosts: Mapping[int, str],
        column: Callable[[str, bool], Sequence[float]],
        noise_ms: Callable[[], float],
    ) -> None:
        self.hosts, self.noise_ms, self._column = hosts, noise_ms, cache(column)
        self.waited = self._known(self._column(STEP, True))
        """Rank -> its waits in a step."""
        self._kept: dict[tuple[str, bool], dict[int, float]] = {}
        self.usual_step = median(self.of(STEP).values())

    def _known(self, column: Sequence[float]) -> dict[int, float]:
        both = zip(self.hosts, column, strict=True)
        return {rank: ms for rank, ms in both if ms == ms}

    def of(self, part: str, *, own: bool = False) -> dict[int, float]:
        """Return milliseconds of a part; ``own``: that were no wait, as far as that was seen."""
        kept = self._kept.get((part, own))
        if kept is None:  # functools.cache would make a cycle with its object
            kept = self._own(part) if own else self._known(self._column(part, False))
            self._kept[part, own] = kept
        return kept

    def own(self, part: str) -> dict[int, float]:
        return self.of(part, own=True)

    def _own(self, part: str) -> dict[int, float]:
        if part == REST:
            return self._rest()
        if not self.waited:
            return self.of(part)
        own, waited = self._column(part, False), self._column(part, True)
        if len(self.waited) == len(self.hosts):
            return self._known([*map(sub, own, waited)])
        both = zip(own, waited, strict=True)
        return self._known([ms if isnan(wait) else ms - wait for ms, wait in both])

    def _rest(self) -> dict[int, float]:
        """Return the time of a step outside its parts; of ranks without an unknown part but the data."""
        data, step = self.of(DATA), self.of(STEP)
        forward, backward, optimizer = self.of(FORWARD), self.of(BACKWARD), self.of(OPTIMIZER)
        rest = {
            rank: step[rank] - (ms + backward[rank] + optimizer[rank] + data.get(rank, 0.0))
            for rank, ms in forward.items()
            if rank in backward and rank in optimizer
        }
        if self.waited:
            parts = [self._known(self._column(part, True)) for part in PARTS[1:]]
            for rank in rest.keys() & self.waited.keys():
                rest[rank] -= self.waited[rank] - sum(waits[rank] for waits in parts)
        return {rank: max(0.0, ms) for rank, ms in rest.items()}


def standing_out(times: Times) -> dict[int, Straggler]:
    """Return the slow ranks; all of them are slow together."""
    if len(times.hosts) < 2:
        return {}
    seen = len(times.waited) == len(times.hosts)
    found = _by_own_time(times) if seen else {}
    found = found or _by_parts(times)
    ranks = tuple(sorted(found))
    # The hosts of several ranks, if no other rank is there and one has two of them.
    hosts = tuple(dict.fromkeys(times.hosts[rank] for rank in ranks))
    there = sum(host in hosts for host in times.hosts.values()) if ranks else 0
    hosts = hosts if len(hosts) < len(ranks) == there else ()
    return {rank: one._replace(ranks=ranks, hosts=hosts) for rank, one in found.items()}


def _by_own_time(times: Times) -> dict[int, Straggler]:
    own, waited, usual_step = times.own(STEP), times.waited, times.usual_step
    fine = max(pace.FINE_SHARE * usual_step, pace.FINE_NOISE * times.noise_ms())
    slow = _apart(own, min(fine, pace.SLOW_SHARE * usual_step), len(own) // 2)
    if not slow:
        return {}
    others = [rank for rank in own if rank not in slow]
    usual = median(own[rank] for rank in others)
    wait = median(waited[rank] for rank in others)
    if any(wait - waited[r] < pace.WAIT_SHARE * (own[r] - usual) for r in slow):
        return {}
    cost = max(own[rank] for rank in slow) - max(own[rank] for rank in others)
    found = {}
    for rank in slow:
        part, here, there = _longest_part(times, rank, others)
        if here - there < pace.WAIT_SHARE * (own[rank] - usual):
            part, here, there = STEP, own[rank], usual
        found[rank] = Straggler(rank, part, here, there, usual_step, cost_ms=cost)
    return found


def _longest_part(times: Times, rank: int, others: list[int]) -> tuple[str, float, float]:
    known = []
    for part in (*PARTS[1:], REST):
        own = times.own(part)
        there = [own[other] for other in others if other in own]
        if rank in own and there:
            known.append((own[rank] - median(there), part, own[rank], median(there)))
    return max(known)[1:] if known else (STEP, 0.0, 0.0)


def _by_parts(times: Times) -> dict[int, Straggler]:
    """Return the ranks that exceed the others in a part, by most; in the whole step only if no part exceeds it."""
    found: dict[int, Straggler] = {}
    for part in (STEP, DATA, FORWARD, OPTIMIZER, REST):
        slow = _slow_in(times, part)
        known = next(iter(found.values()), None)
        if slow and (known is None or known.part == STEP or _most(slow) > _most(found)):
            found = slow
    return found


def _most(found: Mapping[int, Straggler]) -> float:
    return max(one.excess_ms for one in found.values())


def _slow_in(times: Times, part: str) -> dict[int, Straggler]:
    """Return outliers in ``part`` without measured waits; none if the part may itself be a wait."""
    step, usual_step = times.of(STEP), times.usual_step
    values = step if part == STEP else times.own(part)
    # Ranks do not wait for each other while they wait for data; else the majority shows the usual time.
    most = len(values) // 2 if part == DATA else (len(values) - 1) // 2
    slow = _apart(values, pace.SLOW_SHARE * usual_step, max(most, 1) if part == STEP else most)
    others = [rank for rank in values if rank not in slow]
    if not slow or not others:
        return {}
    usual = median(values[rank] for rank in others)
    least = min(values[rank] for rank in slow) - usual
    if part != STEP:
        # Where waits were seen, equal own times prove that no rank is slow.
        waits = median(times.waited.get(r, 0.0) for r in others) if times.waited else 0.0
        if waits >= pace.WAIT_SHARE * least:
            return {}
        if part in _WAIT_IN and not all(
            _is_waited_for(times, rank, others, part, values[rank] - usual) for rank in slow
        ):
            return {}
    longer = min(step[rank] for rank in slow) - usual_step
    # A rank that makes longer steps than the others without making them wait falls behind.
    waited_for = part != STEP and longer < pace.WAIT_SHARE * least
    cost = max(values[r] for r in slow) - max(values[r] for r in others) if waited_for else 0.0
    return {
        rank: Straggler(rank, part, values[rank], usual, usual_step, cost_ms=cost) for rank in slow
    }


def _apart(values: Mapping[int, float], least_ms: float, most: int) -> list[int]:
    """Return the ranks, at most ``most``, that exceed all others clearly, by ``least_ms``; those above the widest gap."""
    ordered = sorted(values, key=values.__getitem__, reverse=True)
    if len(ordered) < 2 or values[ordered[0]] - values[ordered[-1]] < pace.SLOW_MS:
        return []  # the usual case: no rank exceeds the median by more
    limit = max(pace.SLOW_MS, least_ms)
    slow: list[int] = []
    widest = 0.0
    for count in range(1, most + 1):
        least, next_one = values[ordered[count - 1]], values[ordered[count]]
        middle, odd = divmod(len(ordered) - count, 2)
        usual = values[ordered[count + middle]]
        if not odd:
            usual = (usual + values[ordered[count + middle - 1]]) / 2
        if least - usual < limit:
            break
        # Else the others differ as much among themselves.
        if least - usual >= pace.SLOW_SPREAD * (next_one - usual) and least - next_one > widest:
            slow, widest = ordered[:count], least - next_one
    return slow


_WAIT_IN = {FORWARD: (BACKWARD, OPTIMIZER), OPTIMIZER: (BACKWARD,), REST: (BACKWARD,)}
"""Part of a step in which a rank is slow -> where others then wait for it, if waits are not seen: where
ranks exchange gradients; the first is to be known.

A long forward, optimizer or rest may itself be a wait for another rank (sharded parameters, a result
of the device), then of one that is early: so the others must be longer where gradients are exchanged.
"""


def _is_waited_for(
    times: Times, rank: int, others: list[int], part: str, excess_ms: float
) -> bool:
    first, *more = map(times.of, _WAIT_IN[part])
    if rank not in first:
        return False
    waits = {
        r: first[r] + sum(ms.get(r, 0.0) for ms in more) for r in (rank, *others) if r in first
    }
    own = waits.pop(rank)
    return bool(waits) and median(waits.values()) - own >= pace.WAIT_SHARE * excess_ms
