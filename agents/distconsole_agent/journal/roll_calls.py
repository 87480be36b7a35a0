"""Decides when the ranks of a run are asked for their stacks, and adds the agent's own facts about each."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Container

from distconsole_agent.contract import limits, protocol
from distconsole_agent.contract.protocol import Values
from distconsole_agent.journal.rank_states import ENDED, Entry, RankStates, TrackedRank
from distconsole_agent.journal.recorders import Recorders
from distconsole_agent.roll_call.calling import Call, Seat, call_ranks
from distconsole_agent.roll_call.facts import MAX_WORDS
from distconsole_agent.supervisor.failures import read_raised
from distconsole_agent.supervisor.proctree import own_number, pids_of_run, read_environ
from distconsole_agent.survey.processes import SCHEMES
from distconsole_agent.telemetry.sampling import Sample

MAX_WAITING = 4096
"""Calls that the journal has not taken; the oldest go first."""

POWER_SAMPLES = 180
REUSE_SECONDS = 1.0
"""Age up to which an answer is given again to the next request."""

BETWEEN_SECONDS = 2.0
"""Least time since a step after which a rank counts as between two steps."""


class RollCalls:
    """The roll calls of one run on this node; any thread may call.

    Args:
        folder: The run's.
        rings: Where the ranks' rings are.
        monotonic, wall_ns: Seconds, and UNIX nanoseconds.

    Attributes:
        entries: Entries for the journal.
    """

    def __init__(
        self,
        folder: str,
        rings: str,
        ranks: RankStates,
        recorders: Recorders,
        monotonic: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.entries: deque[Entry] = deque(maxlen=MAX_WAITING)
        self._folder, self._rings = folder, rings
        self._logs, self._errors = (os.path.join(folder, name) for name in ("logs", "errors"))
        self._ranks, self._recorders = ranks, recorders
        self._monotonic, self._wall_ns = monotonic, wall_ns
        self._gpus: dict[int, Values] = {}
        self._power: dict[int, deque[tuple[float, float]]] = {}
        self._turn = threading.Lock()
        self._last: tuple[float, list[Call]] = (float("-inf"), [])
        self._stalled: frozenset[int] = frozenset()
        self._next = float("-inf")
        self._start_seconds = limits.LEFT_BEHIND_SECONDS
        """Seconds that a rank must be without a step before the ranks are asked again."""

    def call(self, seconds: float, why: str, only: Container[int] | None = None) -> list[Call]:
        """Return a CALL of each rank of this node, and add them to ``entries``.

        ``only``: just these ranks, by reading their memory from outside: no code runs in them.
        """
        with self._turn:
            if only is None and self._monotonic() - self._last[0] < REUSE_SECONDS:
                return self._last[1]
            there = [rank for rank in list(self._ranks) if not self._ranks.is_nobody(rank)]
            raised = {each.pid: each.error for each in read_raised(self._errors, past=True)}
            found = {}
            if any(rank.alive and rank.pid is None for rank in there):
                found = find_ranks(self._folder)
            there = [rank for rank in there if only is None or rank.rank in only]
            seats = [self._seat(rank, raised, found) for rank in there]
            calls = call_ranks(seats, self._rings, seconds, outside=only is not None)
            if only is None:
                self._last = (self._monotonic(), calls)
        header = {"kind": "roll_call", "why": why}
        for call in calls:
            # The stop by a faster node may have ended a rank before it was asked.
            if why != "stop" or call["alive"] or call["stage"] in ("ended", "not_started"):
                self.entries.append({"t": call["t"], **header, "rank": call["rank"], "call": call})
        return calls

    def call_before_stop(self) -> None:
        """Keep the ranks' stacks before a stop, if a rank stands still."""
        if self._stuck():
            self.call(limits.CALL_SECONDS, "stop")

    def watch(self) -> None:
        """Call ranks in a thread: all if the set that stands still has changed, else those that are late to start."""
        now = self._monotonic()
        stalled = self._stuck()
        if not stalled:
            self._stalled = stalled
            self._watch_start(now)
        if stalled == self._stalled or now < self._next:
            return
        self._next = now + limits.CALL_AGAIN_SECONDS
        if self._begin_call("stalled"):  # else no thread is left: the next time again
            self._stalled = stalled

    def _watch_start(self, now: float) -> None:
        late = self._recorders.left_behind(int(now * 1e9))
        # A start may take longer than the first step behind a process group: both get one limit.
        scale = limits.LEFT_BEHIND_SECONDS / limits.LONG_START_SECONDS
        for rank in list(self._ranks):
            if rank.alive and rank.started_ns and not self._recorders.has_steps(rank.rank):
                since = (self._wall_ns() - rank.started_ns) / 1e9 * scale
                late[rank.rank] = max(late.get(rank.rank, 0.0), since)
        longest = max(late.values(), default=0.0)
        if longest < limits.LEFT_BEHIND_SECONDS:
            self._start_seconds = limits.LEFT_BEHIND_SECONDS
        elif longest >= self._start_seconds and self._begin_call("start", frozenset(late)):
            self._start_seconds = 2 * longest

    def _begin_call(self, why: str, only: Container[int] | None = None) -> bool:
        arguments = (limits.PATIENT_CALL_SECONDS, why, only)
        thread = threading.Thread(target=self.call, args=arguments, name="roll call", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        return True

    def _stuck(self) -> frozenset[int]:
        stalled = frozenset(rank.rank for rank in list(self._ranks) if rank.state == "stalled")
        return stalled | self._recorders.meeting(int(self._monotonic() * 1e9), limits.MEET_SECONDS)

    def take_sample(self, sample: Sample) -> None:
        for gpu in sample.gpus:
            rank, power = gpu.get("rank"), gpu.get(protocol.POWER)
            if isinstance(rank, int):
                self._gpus[rank] = gpu
                if isinstance(power, (int, float)):
                    past = self._power.setdefault(rank, deque(maxlen=POWER_SAMPLES))
                    past.append((sample.t, power))

    def _seat(self, rank: TrackedRank, raised: dict[int, str], found: dict[int, int]) -> Seat:
        place = self._recorders.place_of(rank.rank)
        facts: Call = {"rank": rank.rank, "local_rank": rank.local_rank, "alive": False}
        facts["ended"] = rank.ended
        step, silent = -1, None
        pid = found.get(rank.rank) if rank.alive and rank.pid is None else rank.pid
        if place is not None:
            pid, step, at = place.pid, place.step, place.at_ns
            if at:
                silent = self._monotonic() - at / 1e9
        unread = place is None and bool(self._recorders.unread)
        if silent is None and rank.started_ns and not unread:
            silent = max(0.0, (self._wall_ns() - rank.started_ns) / 1e9)
        facts["stage"] = self._stage(rank, step, silent, place is not None, place and place.usual)
        if unread and facts["stage"] == "starting":
            facts["stage"] = None  # its ring may have steps
        facts["step"] = step
        facts["silent_s"] = None if silent is None else round(silent, 2)
        facts["usual_s"] = place and place.usual
        facts["gpu"] = self._gpu(rank.rank, silent)
        facts["raised"] = raised.get(own_number(pid or 0), "")[:MAX_WORDS]
        log = os.path.join(self._logs, f"rank-{rank.rank}.err")
        return Seat(pid if rank.state not in ENDED else rank.pid, facts, log)

    @staticmethod
    def _stage(
        rank: TrackedRank, step: int, silent: float | None, recorded: bool, usual: float | None
    ) -> str | None:
        if rank.state == "":
            return "not_started"
        if rank.state in ENDED:
            return "ended"
        if step < 0:
            return "starting" if recorded or rank.state == "starting" else None
        longest = max(BETWEEN_SECONDS, limits.STALL_STEPS * (usual or 0.0))
        return "between" if silent is not None and silent > longest else "stepping"

    def _gpu(self, rank: int, silent: float | None) -> Values | None:
        gpu = self._gpus.get(rank)
        if gpu is None:
            return None
        since = self._wall_ns() / 1e9 - (silent or 0.0)
        before = sorted(power for t, power in list(self._power.get(rank, ())) if t <= since)
        middle = before[(len(before) - 1) // 2 : len(before) // 2 + 1]
        return {
            **{name: gpu.get(field) for name, field in protocol.CALL_GPU.items()},
            "power_usual_w": round(sum(middle) / len(middle), 1) if middle else None,
        }


def find_ranks(run_dir: str) -> dict[int, int]:
    """Return the pid of each rank of the run on this node: the oldest process with its number."""
    found: dict[int, int] = {}
    begun, names = pids_of_run(run_dir), [os.fsencode(scheme.rank) for scheme in SCHEMES]
    for pid in sorted(begun, key=lambda pid: (begun[pid].starttime, pid)):
        environment = read_environ(pid)
        named = (environment[each] for each in names if each in environment)
        number = next(named, b"")
        if number.isdigit() and len(number) < 10:
            found.setdefault(int(number), pid)
    return found
