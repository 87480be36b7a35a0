"""Finds ranks that hold the others up, from one moment's windows, by a rank's own time: its step without its waits.

In data-parallel training every rank's step takes equally long, because the fast ones wait for the
slow one. If each rank reports its waits, the one with the longest own time is the slow
one, whatever engine it waits in. If none does, only the parts before the ranks meet differ, and of
two ranks it stays open which one works and which one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import NamedTuple

from distconsole.model.run_events import Window
from distconsole.runs import pace

Figure = Callable[[Window], float | None]
Fresh = Mapping[int, Window]
"""Rank -> its window of now."""

STEP, REST = "step", "rest"
DATA, FORWARD, BACKWARD, OPTIMIZER = "data", "forward", "backward", "optimizer"


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


def step_ms(window: Window) -> float:
    return window.step_ms_mean or 0.0


def own_ms(window: Window) -> float:
    waited = window.waited_ms
    return step_ms(window) if waited is None else step_ms(window) - waited[0]


def standing_out(fresh: Fresh, noise_ms: float = 0.0) -> dict[int, Straggler]:
    """Return the slow ranks; all of them are slow together.

    ``noise_ms`` is the usual change of a rank's own time from second to second.
    """
    if len(fresh) < 2:
        return {}
    seen = all(window.waited_ms is not None for window in fresh.values())
    found = _by_own_time(fresh, noise_ms) if seen else {}
    found = found or _by_parts(fresh)
    ranks = tuple(sorted(found))
    hosts = _whole_hosts(fresh, ranks)
    return {rank: one._replace(ranks=ranks, hosts=hosts) for rank, one in found.items()}


def _whole_hosts(fresh: Fresh, ranks: tuple[int, ...]) -> tuple[str, ...]:
    """Return the hosts of several ``ranks`` if no other rank is there and one has two of them; else none."""
    hosts = tuple(dict.fromkeys(fresh[rank].host for rank in ranks))
    there = [rank for rank, window in fresh.items() if window.host in hosts]
    return hosts if len(hosts) < len(ranks) == len(there) else ()


def _by_own_time(fresh: Fresh, noise_ms: float) -> dict[int, Straggler]:
    own = {rank: own_ms(window) for rank, window in fresh.items()}
    usual_step = median(map(step_ms, fresh.values()))
    fine = max(pace.FINE_SHARE * usual_step, pace.FINE_NOISE * noise_ms)
    slow = _apart(own, min(fine, pace.SLOW_SHARE * usual_step), len(own) // 2)
    others = [rank for rank in own if rank not in slow]
    usual = median(own[rank] for rank in others)
    wait = median(_waited(fresh[rank]) for rank in others)
    if any(wait - _waited(fresh[r]) < pace.WAIT_SHARE * (own[r] - usual) for r in slow):
        return {}
    cost = max((own[rank] for rank in slow), default=0.0) - max(own[rank] for rank in others)
    found = {}
    for rank in slow:
        part, here, there = _longest_part(fresh, rank, others)
        if here - there < pace.WAIT_SHARE * (own[rank] - usual):
            part, here, there = STEP, own[rank], usual
        found[rank] = Straggler(rank, part, here, there, usual_step, cost_ms=cost)
    return found


def _longest_part(fresh: Fresh, rank: int, others: list[int]) -> tuple[str, float, float]:
    known = []
    for part, own_of in _OWN.items():
        here = own_of(fresh[rank])
        there = [ms for other in others if (ms := own_of(fresh[other])) is not None]
        if here is not None and there:
            known.append((here - median(there), part, here, median(there)))
    return max(known)[1:] if known else (STEP, 0.0, 0.0)


def _by_parts(fresh: Fresh) -> dict[int, Straggler]:
    """Return the ranks that exceed the others in a part, by most; in the whole step only if no part exceeds it."""
    found: dict[int, Straggler] = {}
    usual_step = median(map(step_ms, fresh.values()))
    for part in (STEP, DATA, FORWARD, OPTIMIZER, REST):
        slow = _slow_in(fresh, part, usual_step)
        known = next(iter(found.values()), None)
        if slow and (known is None or known.part == STEP or _most(slow) > _most(found)):
            found = slow
    return found


def _most(found: Mapping[int, Straggler]) -> float:
    return max(one.excess_ms for one in found.values())


def _slow_in(fresh: Fresh, part: str, usual_step: float) -> dict[int, Straggler]:
    """Return outliers in ``part`` without measured waits; none if the part may itself be a wait."""
    own_of = _OWN.get(part, step_ms)
    values = {rank: value for rank, each in fresh.items() if (value := own_of(each)) is not None}
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
        if median(_waited(fresh[rank]) for rank in others) >= pace.WAIT_SHARE * least:
            return {}
        if part in _WAIT_IN and not all(
            _is_waited_for(fresh, rank, others, part, values[rank] - usual) for rank in slow
        ):
            return {}
    longer = min(step_ms(fresh[rank]) for rank in slow) - usual_step
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


def _waited(window: Window, index: int = 0) -> float:
    """Return the wait in a step (0), its data, forward, backward or optimizer; 0 if unknown."""
    return 0.0 if window.waited_ms is None else window.waited_ms[index]


def _less_wait(milliseconds: float | None, window: Window, index: int) -> float | None:
    if milliseconds is None or window.waited_ms is None:
        return milliseconds
    return milliseconds - window.waited_ms[index]


def _rest_ms(window: Window) -> float | None:
    """Return the time of a step outside its parts; None if any part but the data is unknown."""
    forward, backward, optimizer = window.forward_ms, window.backward_ms, window.optimizer_ms
    if forward is None or backward is None or optimizer is None:
        return None
    parts = forward + backward + optimizer + (window.data_ms or 0.0)
    rest = step_ms(window) - parts
    if window.waited_ms is not None:
        rest -= window.waited_ms[0] - sum(window.waited_ms[1:])
    return max(0.0, rest)


_OWN: dict[str, Figure] = {
    DATA: lambda window: _less_wait(window.data_ms, window, 1),
    FORWARD: lambda window: _less_wait(window.forward_ms, window, 2),
    BACKWARD: lambda window: _less_wait(window.backward_ms, window, 3),
    OPTIMIZER: lambda window: _less_wait(window.optimizer_ms, window, 4),
    REST: _rest_ms,
}
"""Part of a step -> milliseconds of it that were no wait, as far as that was seen."""


def _meeting_ms(window: Window) -> float | None:
    """Return backward and optimizer, in which ranks exchange gradients; None where backward is unknown."""
    return (
        None if window.backward_ms is None else window.backward_ms + (window.optimizer_ms or 0.0)
    )


_WAIT_IN: dict[str, Figure] = {
    FORWARD: _meeting_ms,
    OPTIMIZER: lambda window: window.backward_ms,
    REST: lambda window: window.backward_ms,
}
"""Part of a step in which a rank is slow -> where others then wait for it, if waits are not seen.

A long forward, optimizer or rest may itself be a wait for another rank (sharded parameters, a result
of the device), then of one that is early: so the others must be longer where gradients are exchanged.
"""


def _is_waited_for(
    fresh: Fresh, rank: int, others: list[int], part: str, excess_ms: float
) -> bool:
    wait_of = _WAIT_IN[part]
    own = wait_of(fresh[rank])
    waits = [ms for other in others if (ms := wait_of(fresh[other])) is not None]
    return own is not None and bool(waits) and median(waits) - own >= pace.WAIT_SHARE * excess_ms
