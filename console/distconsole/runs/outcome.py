"""How a run ended, from what its nodes say of it: whom the coordinator blames, the state, the exit code."""

from __future__ import annotations

from msgspec import UNSET

from distconsole.model.run_events import EndState
from distconsole.model.run_summary import FirstFailure
from distconsole.rpc import frames

LOST = "lost"
"""State of the verdict of a node that has lost the others: it counts only where they say nothing."""


class Outcome:
    """One run's, or that of its last attempt.

    Only what the host of the coordinator says counts. What others say, which may have lost it, counts
    once it will not be heard of again, which is when the state is asked for without a word of it.

    Args:
        coordinator: The run's first host.
    """

    def __init__(self, coordinator: str) -> None:
        self._coordinator = coordinator
        self._failures: list[tuple[int, str, frames.FailureEntry]] = []
        self._verdict: frames.VerdictEntry | None = None
        self._others: dict[str, frames.VerdictEntry] = {}
        self._ends: dict[str, frames.EndEntry] = {}

    @property
    def judged(self) -> bool:
        """Whether a node has said how the run ended."""
        known = any(verdict.state != LOST for verdict in self._others.values())
        return self._verdict is not None or known or bool(self._ends)

    @property
    def has_verdict(self) -> bool:
        """Whether the coordinator's verdict is known."""
        return self._verdict is not None

    @property
    def seconds(self) -> float | None:
        """How long the run took on the node where it took longest; None while no node has ended."""
        return max((entry.seconds for entry in self._ends.values()), default=None)

    @property
    def ended_hosts(self) -> frozenset[str]:
        """Hosts that have said that nothing of the run is left there."""
        return frozenset(self._ends)

    def begin_again(self) -> None:
        """Forget failures: they are of an attempt that another has followed."""
        self._failures.clear()

    def failed(self, host: str, entry: frames.FailureEntry, t: float) -> None:
        """Keep a failure: which one came first is the coordinator's to say."""
        self._failures.append((entry.t_ns + int((t - entry.t) * 1e9), host, entry))

    def take(self, host: str, entry: frames.VerdictEntry) -> FirstFailure | None:
        """Take a verdict; return whom it blames, if it is the coordinator's."""
        if host != self._coordinator:
            self._others.setdefault(host, entry)
            return None
        if self._verdict is not None:
            return None
        self._verdict = entry
        return self.first_failure()

    def ended(self, host: str, entry: frames.EndEntry) -> None:
        """Take that nothing of the run is left on a host."""
        self._ends[host] = entry

    def first_failure(self) -> FirstFailure | None:
        """Return whom the coordinator blames; without it, whom others do; else the earliest failure."""
        if self._verdict is not None:
            return blamed(self._verdict.first_failure)
        others = self._others.values()
        for verdict in sorted(others, key=lambda verdict: verdict.state == LOST):
            if verdict.first_failure is not None:
                return blamed(verdict.first_failure)
        if not self._failures:
            return None
        _, host, entry = min(self._failures, key=lambda failure: failure[0])
        return FirstFailure(
            rank=entry.rank,
            host=host,
            exit_code=1 if entry.exit_code is None else entry.exit_code,
            error=entry.error or "",
            signal=UNSET if entry.signal is None else entry.signal,
            traceback=entry.traceback or "",
        )

    def state(self, first: FirstFailure | None) -> tuple[EndState, int]:
        """Return state and exit code; a run without a verdict did not succeed."""
        judged = self._judged()
        for state in (EndState.FAILED, LOST, EndState.STOPPED):
            said = next((said for said in judged if said.state == state), None)
            if said is not None:
                ended = EndState.STOPPED if state == EndState.STOPPED else EndState.FAILED
                return ended, said.exit_code or 1
        if judged and all(said.state == EndState.SUCCEEDED for said in judged):
            return EndState.SUCCEEDED, 0
        return EndState.FAILED, first.exit_code if first is not None else 1

    def _judged(self) -> list[frames.VerdictEntry | frames.EndEntry]:
        """Return the words that count: the coordinator's, else what the others judge, else their ends."""
        word = self._verdict or self._ends.get(self._coordinator)
        if word is not None:
            return [word]
        others = [verdict for verdict in self._others.values() if verdict.state != LOST]
        return [*others] or [*self._ends.values()]


def blamed(said: frames.FailedFirst | None) -> FirstFailure | None:
    """Return whom a node says that the coordinator blames."""
    if said is None:
        return None
    return FirstFailure(
        rank=said.rank,
        host=said.host,
        exit_code=said.exit_code,
        error=said.error or "",
        signal=UNSET if said.signal is None else said.signal,
        traceback=said.traceback or "",
    )
