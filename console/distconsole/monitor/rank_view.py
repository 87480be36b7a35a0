"""One rank of a run as last seen. It knows no event: ``RunTimeline`` writes to it."""

from __future__ import annotations

from distconsole.model.run_events import RankState

LIVING = (RankState.STARTING, RankState.RUNNING, RankState.STALLED)


class RankView:
    """One rank as last seen; None where unknown. Times in UNIX seconds, rates a second."""

    __slots__ = (
        "backward_ms",
        "data_ms",
        "dropped",
        "exit_code",
        "forward_ms",
        "gpu",
        "gpu_mem_total",
        "gpu_mem_used",
        "gpu_util",
        "host",
        "last_seen",
        "local_rank",
        "metrics",
        "optimizer_ms",
        "phase",
        "phases",
        "pid",
        "power_w",
        "rank",
        "samples_s",
        "signal",
        "skipped",
        "started_at",
        "state",
        "step",
        "step_ms_mean",
        "step_ms_p95",
        "step_ms_p95_run",
        "step_ms_run",
        "stepped_at",
        "steps",
        "temp_c",
    )

    def __init__(self, rank: int, host: str) -> None:
        self.rank = rank
        self.host = host
        self.local_rank: int | None = None
        self.pid: int | None = None
        self.state = RankState.STARTING
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.gpu: int | None = None
        self.gpu_util: float | None = None
        self.gpu_mem_used: int | None = None
        self.gpu_mem_total: int | None = None
        self.temp_c: float | None = None
        self.power_w: float | None = None
        self.step: int | None = None
        self.steps = 0
        """Steps in all windows so far."""
        self.skipped = 0
        self.dropped = 0
        self.step_ms_mean: float | None = None
        self.step_ms_p95: float | None = None
        self.step_ms_run: float | None = None
        """Mean over the whole run, weighted by steps."""
        self.step_ms_p95_run: float | None = None
        """The windows' 95th percentiles, averaged as the mean is."""
        self.data_ms: float | None = None
        self.forward_ms: float | None = None
        self.backward_ms: float | None = None
        self.optimizer_ms: float | None = None
        self.samples_s: float | None = None
        self.metrics: dict[str, float] = {}
        self.started_at: float | None = None
        """When its process was first heard of."""
        self.phase: str | None = None
        self.phases: dict[str, float] = {}
        """Phase -> seconds since the rank was started."""
        self.last_seen: float | None = None
        """When its last window came."""
        self.stepped_at: float | None = None
        """When the last window with a step in it came."""

    def begin_again(self) -> None:
        """Forget what its process that has ended had come to: another one starts."""
        self.exit_code = self.signal = self.step = self.phase = None
        self.stepped_at = self.started_at = None
        self.phases = {}

    @property
    def alive(self) -> bool:
        """Whether its process is there."""
        return self.state in LIVING
