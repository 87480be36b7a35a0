"""How a run ended, from what its nodes say of it: whom the coordinator blames, the state, the exit code. Pure."""

from __future__ import annotations

from msgspec import UNSET

from distconsole.model.run_events import EndState
from distconsole.model.run_summary import FirstFailure
from distconsole.remote import frames

LOST = "lost"
"""State of the verdict of a node that has lost the others: it counts only where they say nothing."""


class Outcome:
    """One run's, or that of its last attempt."""

    def __init__(self) -> None:
        self._failures: list[tuple[int, str, frames.FailureEntry]] = []
        self._verdict: frames.VerdictEntry | None = None
        self._lone_verdict: frames.VerdictEntry | None = None
        self._ends: dict[str, frames.EndEntry] = {}

    @property
    def judged(self) -> bool:
        """Whether a node has said how the run ended."""
        return self._verdict is not None or bool(self._ends)

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

    def take(self, entry: frames.VerdictEntry) -> FirstFailure | None:
        """Take a verdict; return whom it blames, if it is the first that counts."""
        if entry.state == LOST:
            self._lone_verdict = self._lone_verdict or entry
            return None
        if self._verdict is not None:
            return None
        self._verdict = entry
        return self.first_failure()

    def ended(self, host: str, entry: frames.EndEntry) -> None:
        """Take that nothing of the run is left on a host."""
        self._ends[host] = entry

    def first_failure(self) -> FirstFailure | None:
        """Return whom the coordinator blames; without one, the earliest failure that we know."""
        verdict = self._verdict or self._lone_verdict
        if verdict is not None:
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
        judged = [self._verdict] if self._verdict is not None else list(self._ends.values())
        for said in judged:
            if said.state in (EndState.STOPPED, EndState.FAILED, LOST):
                state = EndState.STOPPED if said.state == EndState.STOPPED else EndState.FAILED
                return state, said.exit_code or 1
        if judged and all(said.state == EndState.SUCCEEDED for said in judged):
            return EndState.SUCCEEDED, 0
        return EndState.FAILED, first.exit_code if first is not None else 1


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
