"""Which rank the others wait for, from the parts of its own steps.

In data-parallel training every rank's step takes equally long, because the fast ones wait in
backward for the gradients of the slow one. What tells them apart is the time that a rank spends
before it meets the others: waiting for data, forward, optimizer, and what is outside all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from statistics import median
from typing import NamedTuple

from distconsole.model.run_events import RunFinding, Window
from distconsole.model.time_text import ms_text
from distconsole.runs.detectors.conclusions import STRAGGLER
from distconsole.runs.detectors.ranks import Ranks
from distconsole.runs.pace import (
    BEHIND_SHARE,
    BEHIND_STEPS,
    COMPARED_SECONDS,
    COMPARED_STEPS,
    PERSISTENT_SECONDS,
    SLOW_MS,
    SLOW_SHARE,
    SLOW_SPREAD,
    WAIT_SHARE,
    WARM_UP_WINDOWS,
)


class Straggler(NamedTuple):
    """A rank that costs every step ``excess_ms``, in which part of it, and since when; -1 if unknown."""

    rank: int
    part: str
    own_ms: float
    median_ms: float
    step_ms: float
    since_step: int = -1

    @property
    def excess_ms(self) -> float:
        """Milliseconds a step over the median of the other ranks."""
        return self.own_ms - self.median_ms


class StragglerWatch:
    """Compares the ranks once a second; reports each slow rank once until it recovers."""

    def __init__(self) -> None:
        self.slow: dict[int, Straggler] = {}
        """The ranks that are slow, with the newest figures."""
        self._latest: dict[int, Window] = {}
        self._windows: dict[int, int] = {}
        self._streak: dict[int, int] = {}
        self._began: dict[int, dict[int, Window]] = {}
        """Rank -> what each rank did when its streak began."""
        self._second = 0

    def rank_ended(self, rank: int) -> None:
        for known in (self.slow, self._latest, self._windows, self._streak, self._began):
            known.pop(rank, None)

    def add(self, window: Window) -> list[Straggler]:
        """Take one rank's window; return who is newly known to be slow."""
        if window.step_ms_mean is None or not window.steps:
            return []
        rank, t = window.rank, window.t
        self._windows[rank] = self._windows.get(rank, 0) + 1
        if self._windows[rank] > WARM_UP_WINDOWS:
            self._latest[rank] = window
        if int(t) <= self._second:
            return []
        self._second = int(t)
        fresh = {r: last for r, last in self._latest.items() if t - last.t <= _compared_s(last)}
        return self._judge(fresh) if len(fresh) >= 2 else []

    def _judge(self, fresh: dict[int, Window]) -> list[Straggler]:
        found: list[Straggler] = []
        standing_out = _standing_out(fresh)
        for rank in fresh:
            straggler = standing_out.get(rank)
            if straggler is None:
                self._streak[rank] = 0
                self._began.pop(rank, None)
                self.slow.pop(rank, None)
                continue
            self._streak[rank] = self._streak.get(rank, 0) + 1
            if self._streak[rank] == 1:
                self._began[rank] = fresh
            if self._streak[rank] < PERSISTENT_SECONDS:
                continue
            began = self._began[rank]
            if straggler.part == STEP and rank not in self.slow and not _lags(began, fresh, rank):
                continue
            known, since = rank in self.slow, began[rank].step
            self.slow[rank] = straggler._replace(since_step=since)
            if not known:
                found.append(self.slow[rank])
        return found


def _compared_s(window: Window) -> float:
    return max(COMPARED_SECONDS, COMPARED_STEPS * _step_ms(window) / 1000)


def _step_ms(window: Window) -> float:
    return window.step_ms_mean or 0.0


def _rest_ms(window: Window) -> float | None:
    """Return what a step takes outside its parts; None where one but the data is unknown."""
    forward, backward, optimizer = window.forward_ms, window.backward_ms, window.optimizer_ms
    if forward is None or backward is None or optimizer is None:
        return None
    return max(0.0, _step_ms(window) - forward - backward - optimizer - (window.data_ms or 0.0))


def _meeting_ms(window: Window) -> float | None:
    """Return backward and optimizer, in which ranks exchange gradients; None where backward is unknown."""
    return (
        None if window.backward_ms is None else window.backward_ms + (window.optimizer_ms or 0.0)
    )


STEP, DATA, FORWARD, OPTIMIZER, REST = "step", "data", "forward", "optimizer", "rest"
Figure = Callable[[Window], float | None]
_VALUE_OF: dict[str, Figure] = {
    STEP: _step_ms,
    DATA: attrgetter("data_ms"),
    FORWARD: attrgetter("forward_ms"),
    OPTIMIZER: attrgetter("optimizer_ms"),
    REST: _rest_ms,
}
_WAIT_IN: dict[str, Figure] = {
    FORWARD: _meeting_ms,
    OPTIMIZER: attrgetter("backward_ms"),
    REST: attrgetter("backward_ms"),
}
"""Part of a step in which a rank is slow -> where others then wait for it.

Data is not in it: nobody waits for another rank while it waits for data, so all of that is its own.
A long forward, optimizer or rest may itself be a wait for another rank (sharded parameters, a result
of the device), then of one that is early: so the others must be longer where gradients are exchanged.
"""


def _standing_out(fresh: Mapping[int, Window]) -> dict[int, Straggler]:
    """Return by rank what it exceeds all others in, by most; its whole step only where no part says more."""
    found: dict[int, Straggler] = {}
    for part in _VALUE_OF:
        one = _slowest(fresh, part)
        if one is not None:
            known = found.get(one.rank)
            if known is None or known.part == STEP or one.excess_ms > known.excess_ms:
                found[one.rank] = one
    return found


def _slowest(fresh: Mapping[int, Window], part: str) -> Straggler | None:
    """Return the one rank that stands out in ``part``; None if none or many do."""
    value_of = _VALUE_OF[part]
    values = {rank: value for rank, p in fresh.items() if (value := value_of(p)) is not None}
    if len(values) < 2:
        return None
    if max(values.values()) - min(values.values()) < SLOW_MS:
        return None  # as most often: nobody exceeds the median by more
    rank = max(values, key=values.__getitem__)
    others = [value for other, value in values.items() if other != rank]
    typical = median(others)
    excess = values[rank] - typical
    step_ms = median(map(_step_ms, fresh.values()))
    if excess < max(SLOW_MS, SLOW_SHARE * step_ms):
        return None
    if excess < SLOW_SPREAD * (max(others) - typical):
        return None  # the others differ as much among themselves
    if part in _WAIT_IN and not _is_waited_for(fresh, rank, part, excess):
        return None
    return Straggler(rank, part, values[rank], typical, step_ms)


def _is_waited_for(fresh: Mapping[int, Window], rank: int, part: str, excess_ms: float) -> bool:
    """Whether the others are longer where they wait for ``rank``, by about what it has on top in ``part``."""
    wait_of = _WAIT_IN[part]
    own = wait_of(fresh[rank])
    others = [ms for other, p in fresh.items() if other != rank and (ms := wait_of(p)) is not None]
    return own is not None and bool(others) and median(others) - own >= WAIT_SHARE * excess_ms


def _lags(began: Mapping[int, Window], fresh: Mapping[int, Window], rank: int) -> bool:
    """Whether ``rank`` has made fewer steps than the others since ``began``.

    Ranks that wait for each other make equally many, however the windows cut their steps up. The
    newest windows need not be of one moment, where a host's journal comes late: what a rank can
    have made between two such moments does not count.
    """
    first, last = began[rank], fresh[rank]
    if first.step < 0:
        return False  # nobody says which step it is
    others = [(began[r], fresh[r]) for r in fresh if r != rank and r in began]
    if not others:
        return False
    most = max(there.step - here.step for here, there in others)
    behind = median(
        there.step
        - here.step
        - (abs(here.t - first.t) + abs(there.t - last.t)) * 1000 / max(_step_ms(there), 1e-3)
        for here, there in others
    ) - (last.step - first.step)
    return behind >= max(BEHIND_STEPS, BEHIND_SHARE * most)


_LOOK = (
    "look at what the script does there on this rank alone, and at the host's processors and GPUs "
    "(distconsole top)"
)
_HINTS = {
    DATA: "it waits longer for its batches: look at the DataLoader's num_workers, and at the "
    "host's disk and processors (distconsole top)",
    FORWARD: f"from its batch to backward it takes longer: {_LOOK}",
    OPTIMIZER: f"its optimizer takes longer: {_LOOK}",
    STEP: _LOOK,
    REST: f"{_LOOK}: logging, writing files, a validation",
}
"""Says which part was measured; why it takes longer was not."""


def straggler_finding(ranks: Ranks, slow: Straggler, t: float) -> RunFinding:
    """Return which rank the others wait for, and in which part of the step."""
    where = {
        STEP: "its steps",
        REST: "its steps, outside data, forward, backward and optimizer",
    }.get(slow.part, f"the {slow.part} part of its steps")
    since = f" since about step {slow.since_step:,}" if slow.since_step >= 0 else ""
    host = ranks.hosts.get(slow.rank, "")
    return ranks.finding(
        t,
        STRAGGLER,
        f"rank {slow.rank} on {host} is slow{since} in {where}: "
        f"{ms_text(slow.excess_ms)} more than the others, of {ms_text(slow.step_ms)} a step",
        (slow.rank,),
        seen=f"{ms_text(slow.own_ms)} there; median of the others {ms_text(slow.median_ms)}",
        expected="less than a tenth of a step between the ranks",
        hint=_HINTS[slow.part],
    )
