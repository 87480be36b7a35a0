"""One run in a few values, for lists."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from distconsole.model.findings import Severity

SLURM_ENDED = ("Slurm job ", "Slurm ended job ", "Slurm ended the job", "Slurm preempted job ")
"""The agents' words that Slurm ended a run."""

DISAGREE = "ranks disagree in a collective"
"""The agents' words that ranks came to a collective with different data, and not which of them is wrong."""

LAUNCHER_ENDED = ("srun was ", "mpirun killed ", "mpirun exited ", "torchrun killed ")
"""The agents' words that a launcher ended, and none of its ranks before."""


class FirstFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The rank that failed first, by nanosecond times corrected for clock offsets."""

    rank: int
    host: str
    exit_code: int
    error: str
    signal: int | UnsetType = UNSET
    traceback: str = ""

    @property
    def of_rank(self) -> bool:
        """True if the rank itself failed; else its host or launcher was lost, or Slurm ended all, and it is merely
        the first, or ranks disagree, and it noticed."""
        others = (f"node {self.host} lost", "mpirun's daemon on ", DISAGREE)
        return not self.error.startswith((*others, *SLURM_ENDED, *LAUNCHER_ENDED))

    @property
    def blame(self) -> str:
        if self.of_rank:
            return f"rank {self.rank} on {self.host} failed first: {self.error}"
        return self.short_blame

    @property
    def short_blame(self) -> str:
        """The same if it is clear that a rank or node failed: in a list, or after an exit code."""
        place = f"rank {self.rank} on {self.host}: " if self.of_rank else ""
        if self.error.startswith(LAUNCHER_ENDED):
            place = f"{self.host}: "
        return place + self.error


class NoticedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a run, at ``t`` in UNIX seconds."""

    t: float
    check: str
    severity: Severity
    summary: str
    hint: str = ""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a list, or one run's summary (``show``)."""

    run: str
    name: str
    state: str
    """running, unknown, succeeded, failed or stopped."""
    started: float
    seconds: float | None
    script: str
    launcher: str
    world_size: int
    hosts: tuple[str, ...]
    exit_code: int | None = None
    steps: int | None = None
    unit: str = ""
    """``batches`` if these are the steps, as in a window."""
    samples_s: float | None = None
    step_ms_spread: float | None = None
    """Slowest rank's mean step time over the fastest's."""
    own_ms_spread: float | None = None
    """The same of the ranks' own times, their steps less their waits; None if a rank does not report its waits."""
    metrics: dict[str, float] = msgspec.field(default_factory=dict)
    best: dict[str, float] = msgspec.field(default_factory=dict)
    """Of accuracies and scores the highest value, of any other metric the lowest; if all of the run was read."""
    first_failure: FirstFailure | None = None
    restarts: int = 0
    """Restarts of its ranks."""
    findings: tuple[NoticedFinding, ...] = ()
    """Of one run's summary: warnings and failures beside the first failure, oldest first."""
    origin: str = ""
    """``here``: it was launched from this store; ``attached``: from elsewhere, and is stored here; ``elsewhere``: only its hosts know it."""
    last_seen: float | None = None
    """When a run whose end is not known was last known to run, UNIX seconds."""
