"""The evidence on a run: the calls of its ranks, and the hosts that did not answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from distconsole.model.diagnosis.calls import Call
from distconsole.runs.diagnosis.stacks import is_over
from distconsole.runs.pace import fresh_seconds

STALL_SECONDS, STALL_STEPS = 30.0, 10.0
"""A rank has stalled after this long, or this many of its usual steps, whichever is longer; as agents judge."""
LATELY_SECONDS, LATELY_STEPS = 2.0, 3.0
"""A rank goes on that has finished a step within this long, or this many of its steps; its agent looks once a second."""
NEVER_STEPPED_SECONDS = 10.0
"""A rank without any step is left behind once others have made steps for this long."""


@dataclass(frozen=True)
class Roll:
    """One roll call.

    Attributes:
        calls: By rank, of those that a host reported.
        hosts: Every rank of the run -> its host.
        away: Host -> why it does not answer.
        usual_ms: Rank -> usual duration of its steps, if known.
        longest_s: The longest pause between two steps that this run has made so far, such as to save.
        stepping_s: Seconds since the run's first step; 0 if unknown.
    """

    run: str
    calls: Mapping[int, Call]
    hosts: Mapping[int, str]
    away: Mapping[str, str] = field(default_factory=dict)
    usual_ms: Mapping[int, float] = field(default_factory=dict)
    longest_s: float = 0.0
    stepping_s: float = 0.0
    causes: dict[int, Any] = field(default_factory=dict, compare=False)
    """Rank -> the cause that was found."""

    @cached_property
    def world(self) -> frozenset[int]:
        return frozenset(self.hosts) | frozenset(self.calls)

    def host(self, rank: int) -> str:
        return self.hosts.get(rank, "")

    def moves(self, call: Call) -> bool:
        silent = call.silent_s
        made = call.step >= 0 or call.stage == "stepping"
        known = call.alive and made and silent is not None
        steps_s = LATELY_STEPS * self.usual_s(call.rank)
        return known and (silent or 0.0) <= max(LATELY_SECONDS, steps_s)

    def usual_s(self, rank: int) -> float:
        """Return the usual duration of a step of ``rank``, 0 if unknown."""
        call = self.calls.get(rank)
        told = call.usual_s if call is not None else None
        return told or self.usual_ms.get(rank, 0.0) / 1000

    def rests(self, call: Call) -> bool:
        """Return True if a rank is silent for longer than passing waits, such as a read from a busy disk."""
        limit = fresh_seconds(1000 * self.usual_s(call.rank))
        return call.silent_s is None or call.silent_s > limit

    def is_long(self, call: Call) -> bool:
        """Return True if a rank is silent for longer than a stall and any pause before, or if that is unknown."""
        if call.silent_s is None:
            return True
        if call.step < 0 and min(call.silent_s, self._stepped_s) >= NEVER_STEPPED_SECONDS:
            return True
        steps_s = STALL_STEPS * self.usual_s(call.rank)
        return call.silent_s >= max(STALL_SECONDS, steps_s, 1.2 * self.longest_s)

    @cached_property
    def _stepped_s(self) -> float:
        """Seconds for which ranks have made steps that go on; at least what their number and usual time come to."""
        going = [call for call in self.calls.values() if self.moves(call)]
        estimated = (call.step * self.usual_s(call.rank) for call in going)
        return max((self.stepping_s if going else 0.0, *estimated))

    @cached_property
    def script_is_over(self) -> bool:
        """Whether every rank that lives has come to the end of the script, and every other one has ended well."""
        living = [call for call in self.calls.values() if call.alive]
        gone = (call.ended for call in self.calls.values() if not call.alive)
        well = all(ended is not None and ended.exit_code == 0 for ended in gone)
        told = self.world == frozenset(self.calls)
        return told and bool(living) and well and all(map(is_over, living))

    @cached_property
    def unheard(self) -> frozenset[int]:
        return frozenset(
            r for r, host in self.hosts.items() if host in self.away and r not in self.calls
        )
