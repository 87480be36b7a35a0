"""Finds ranks that have stopped making steps, and those that the others wait for."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, structs

from distconsole.model.diagnosis.calls import Call
from distconsole.model.diagnosis.diagnosis import Diagnosis, Hang
from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding, Window
from distconsole.runs.detectors.conclusions import STALL
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text
from distconsole.runs.diagnosis.blaming import HARD
from distconsole.runs.diagnosis.judge import judge
from distconsole.runs.diagnosis.roll import Roll
from distconsole.runs.pace import TOGETHER_SECONDS, is_fresh

CALLS_SECONDS = 6.0
"""So long is waited for the calls of all ranks, once the first has come."""
CALLED_BEFORE_SECONDS = 5.0
"""Calls belong to a stall if they came at most this long before it."""
SAYS_NOTHING = (Hang.HEALTHY, Hang.UNDECIDED)


class StallWatch:
    """Collects ranks that stall at about the same time, and reports once which rank is behind."""

    def __init__(self, ranks: RanksSeen) -> None:
        self._ranks = ranks
        self._last: dict[int, Window] = {}
        """Rank -> its newest window with a step."""
        self._stalled: dict[int, int | None] = {}
        """Rank -> its process; of ranks that stand still, reported or not."""
        self._untold: set[int] = set()
        self._since = 0.0
        self._calls: dict[int, tuple[float, Call]] = {}
        """Rank -> time and content of its last call."""
        self._called = False
        """True if a call has come that no diagnosis has used yet."""
        self._found: Diagnosis | None = None
        """Diagnosis that was reported of this stall."""
        self._late_since: float | None = None
        """When ranks without a step were asked that are late, as no diagnosis knows yet."""
        self._late_found: Diagnosis | None = None
        """Ranks that were reported."""
        self._longest_s = 0.0
        """The longest pause between two steps of a rank."""

    def stepped(self, window: Window) -> None:
        before = self._last.get(window.rank)
        if before is not None and window.steps:
            self._longest_s = max(self._longest_s, window.t - before.t)
        if window.steps or before is None:
            self._last[window.rank] = window

    def called(self, call: Call, host: str, t: float, *, starts: bool = False) -> None:
        """Take the place of a rank of ``host`` at ``t`` (UNIX seconds); ``starts``: it was called before its first step."""
        if starts and self._late_since is None:
            self._late_since = t
        self._ranks.hosts.setdefault(call.rank, host)
        self._calls[call.rank] = t, call
        self._called = True

    def rank_is(self, rank: int, pid: int | None, t: float, *, stalled: bool) -> None:
        """Take an agent's report on a living rank, at ``t`` in UNIX seconds."""
        if not stalled:
            self.rank_ended(rank)
            return
        if not self._untold:
            self._since = t
        self._stalled[rank] = pid
        self._untold.add(rank)

    def rank_ended(self, rank: int) -> None:
        """Take that ``rank`` goes on, or lives no longer."""
        self._stalled.pop(rank, None)
        self._untold.discard(rank)
        if not self._stalled:
            self._found = None

    def due(self, t: float) -> Iterator[RunFinding]:
        """Yield the ranks that have stalled at ``t`` (UNIX seconds), once those that do so together were heard of.

        A diagnosis that comes later, or changes, is reported then.
        """
        if not self._stalled:
            yield from self._late_start(t)
            return
        waited = t - self._since
        if waited < TOGETHER_SECONDS:
            return
        fresh = self._fresh_calls(self._since)
        if fresh and waited < CALLS_SECONDS and not fresh.keys() >= self._ranks.living.keys():
            return
        untold, called = tuple(sorted(self._untold)), self._called
        self._untold.clear()
        self._called = False
        found = self._judge(fresh) if fresh and (untold or called) else None
        if found is not None and found.kind not in SAYS_NOTHING:
            if self._found is None or _differs(found, self._found):
                self._found = found
                yield self._diagnosed(found, t)
        elif untold and self._found is None:
            yield self._behind(untold, t)

    def _late_start(self, t: float) -> Iterator[RunFinding]:
        """Yield the ranks that delay the start, once every rank has made steps or was asked."""
        since = self._late_since
        if since is None or t - since < TOGETHER_SECONDS:
            return
        calls = {**self._fresh_calls(since), **self._going(t)}
        if not calls.keys() >= self._ranks.living.keys():
            if t - since >= CALLS_SECONDS:
                self._late_since = None
            return
        self._late_since = None
        found = self._judge(calls)
        if not found.hang or found.kind in SAYS_NOTHING:
            return
        if self._late_found is None or _differs(found, self._late_found):
            self._late_found = found
            told = self._diagnosed(found, t)
            sure = found.kind in (*HARD, Hang.MISMATCH, Hang.CROSSED)
            goes_on = any(call.stage == "stepping" for call in calls.values())
            severity = Severity.WARN if sure or goes_on else Severity.INFO
            yield structs.replace(told, severity=severity)

    def _going(self, t: float) -> dict[int, Call]:
        return {
            rank: Call(
                rank=rank,
                stage="stepping",
                step=last.step,
                silent_s=t - last.t,
                usual_s=(last.step_ms_mean or 0.0) / 1000,
            )
            for rank, last in self._last.items()
            if is_fresh(last.t, t, last.step_ms_mean)
        }

    def _fresh_calls(self, since: float) -> dict[int, Call]:
        from_then = since - CALLED_BEFORE_SECONDS
        return {rank: call for rank, (t, call) in self._calls.items() if t >= from_then}

    def _judge(self, calls: dict[int, Call]) -> Diagnosis:
        usual = {rank: last.step_ms_mean or 0.0 for rank, last in self._last.items()}
        hosts = {
            r: h for r, h in self._ranks.hosts.items() if r in self._ranks.living or r in calls
        }
        return judge(
            Roll(self._ranks.run, calls, hosts, usual_ms=usual, longest_s=self._longest_s)
        )

    def _diagnosed(self, found: Diagnosis, t: float) -> RunFinding:
        run = self._ranks.run
        why = f"distconsole why {run} shows where every rank is"
        return structs.replace(
            self._ranks.finding(
                t,
                STALL,
                found.short,
                found.ranks or tuple(sorted(self._stalled)),
                severity=Severity.WARN if found.hang else Severity.INFO,
                seen="\n".join(found.evidence),
                hint=f"{found.hint}; {why}" if found.hint else why,
            ),
            kind=found.kind.value,
            ranks=found.ranks if len(found.ranks) > 1 else UNSET,
        )

    def _behind(self, ranks: tuple[int, ...], t: float) -> RunFinding:
        lowest = min(map(self._step_of, ranks))
        behind = tuple(rank for rank in ranks if self._step_of(rank) == lowest)
        others = [rank for rank in self._ranks.living if rank not in self._stalled]
        known = [self._last[rank] for rank in others if rank in self._last]
        going = sum(is_fresh(last.t, t, last.step_ms_mean) for last in known)
        return self._finding(ranks, behind, (going, len(others) - going), t)

    def _step_of(self, rank: int) -> int:
        return self._last[rank].step if rank in self._last else -1

    def _finding(
        self, ranks: tuple[int, ...], behind: tuple[int, ...], others: tuple[int, int], t: float
    ) -> RunFinding:
        """Report the stalled ranks, and those of ``behind`` to look at; ``others``: how many go on, how many are unheard of."""
        first, run, (going, unheard) = behind[0], self._ranks.run, others
        host, pid = self._ranks.hosts.get(first, ""), self._stalled[first]
        on_host = f" on {host}" if len(behind) == 1 else ""
        stopped = "has stopped" if len(behind) == 1 else "have stopped"
        stopped += " making steps"
        if first in self._last:
            stopped += f" after step {self._step_of(first):,}"
        if waiting := len(ranks) - len(behind):
            summary = f"{ranks_text(behind)}{on_host} {stopped}; "
            summary += count_text(waiting, "more waits", "more wait")
            summary += f", at step {max(map(self._step_of, self._last), default=0):,}"
        elif going or unheard or len(ranks) == 1:
            summary = f"{ranks_text(ranks)}{on_host} {stopped}"
            summary += f"; {count_text(going, 'goes on', 'go on')}" if going else ""
            silent = count_text(unheard, "other", "others")
            summary += f"; nothing is heard of {silent}" if unheard else ""
        else:
            summary = f"all {len(ranks):,} ranks {stopped}"
        look = f"py-spy dump --pid {pid} on {host} says where it is; " if pid else ""
        return self._ranks.finding(
            t,
            STALL,
            summary,
            behind,
            expected="a step within 30 s, ten times the usual time, or about the longest pause before",
            hint=f"{look}distconsole logs {run} --rank {first}; distconsole stop {run}",
        )


def _differs(one: Diagnosis, other: Diagnosis) -> bool:
    return (one.kind, one.ranks, one.place) != (other.kind, other.ranks, other.place)
