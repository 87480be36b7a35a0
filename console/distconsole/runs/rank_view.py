"""One rank of a run as last seen; ``RunTimeline`` writes to it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

from distconsole.model.run_events import GpuSample, RankState, Window
from distconsole.runs.figures import PARTS

LIVING = (RankState.RUNNING, RankState.STARTING, RankState.STALLED)
ENDED_BY_STOP = "ended by the stop"
"""Of a rank whose SIGTERM is that of the stop, where others would read of exit code 143."""


@dataclass(slots=True, eq=False)
class RankView:
    """One rank as last seen; None if unknown. Times in UNIX seconds, rates a second."""

    rank: int
    host: str
    local_rank: int | None = None
    pid: int | None = None
    state: RankState = RankState.STARTING
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    """True if the stop's SIGTERM ended it."""
    sample: GpuSample | None = None
    """The last report of its GPU."""
    window: Window | None = None
    """Its last window, in this attempt: the parts of a step are read there."""
    step: int | None = None
    steps: int = 0
    """Steps in all windows so far."""
    first_steps: int = 0
    """Those of the first of these."""
    windows: int = 0
    """Windows with a known number of samples."""
    samples_run: float = 0.0
    """Samples in all windows that ``step_seconds_run`` covers: all but the first, the warm-up."""
    step_seconds_run: float = 0.0
    skipped: int = 0
    dropped: int = 0
    step_ms_mean: float | None = None
    step_ms_p95: float | None = None
    step_ms_run: float | None = None
    """Mean over the whole run, weighted by steps."""
    step_ms_p95_run: float | None = None
    """The windows' 95th percentiles, averaged as the mean is."""
    waited_ms: float | None = None
    """Wait for others in each step; None without a recent report."""
    parts_waited_ms: tuple[float, ...] | None = None
    """Parts of that in data, forward, backward and optimizer."""
    own_ms: float | None = None
    own_at: float | None = None
    """Own time of its steps in the last report of it, and that report's time."""
    waited_ms_run: float | None = None
    own_ms_run: float | None = None
    """Means over the run but its first window, the warm-up: its waits in a step, and the own time."""
    own_steps: int = 0
    """Steps in the windows that those means are of."""
    samples_s: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    started_at: float | None = None
    """When its process was first heard of."""
    ended_at: float | None = None
    """When it was heard that its process is over."""
    phase: str | None = None
    phases: dict[str, float] = field(default_factory=dict)
    """Phase -> seconds since the rank was started."""
    last_seen: float | None = None
    """When its last window came."""
    last_ms: tuple[float, ...] = ()
    """Mean step times of its last windows with steps, the newest last."""
    batches: bool = False
    """Whether its steps are batches, as it has made no step yet."""
    stepped_at: float | None = None
    """When the last window with a step in it came."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values alone: a moment of a run has thousands of these."""
        return RankView, _VALUES(self)

    def begin_again(self) -> None:
        """Forget the figures of its process that has ended: another one starts."""
        self.exit_code = self.signal = self.step = self.phase = None
        self.stopped = False
        self.stepped_at = self.started_at = self.ended_at = self.samples_s = None
        self.step_ms_mean = self.step_ms_p95 = self.waited_ms = self.window = None
        self.parts_waited_ms = self.own_ms = self.own_at = None
        self.last_ms = ()
        self.phases = {}

    def begin_steps(self) -> None:
        """Forget the batches that were counted before its first step."""
        self.steps = self.first_steps = self.windows = self.own_steps = 0
        self.samples_run = self.step_seconds_run = 0.0
        self.step_ms_run = self.step_ms_p95_run = self.waited_ms_run = self.own_ms_run = None
        self.last_ms = ()

    @property
    def gpu(self) -> int | None:
        return self.sample.gpu if self.sample else None

    @property
    def gpu_util(self) -> float | None:
        return self.sample.util if self.sample else None

    @property
    def data_ms(self) -> float | None:
        return self.window.data_ms if self.window else None

    @property
    def parts_ms(self) -> tuple[float | None, ...]:
        """Data, forward, backward and optimizer in its last window."""
        return _PARTS(self.window) if self.window else (None,) * len(PARTS)

    @property
    def steady_ms(self) -> float | None:
        """The least of its last windows' step times, so that one pause is no slowness; None if unknown."""
        return min(self.last_ms, default=None)

    @property
    def samples_s_run(self) -> float | None:
        """Samples a second over the whole run; None if unknown."""
        return self.samples_run / self.step_seconds_run if self.step_seconds_run else None

    @property
    def alive(self) -> bool:
        return self.state in LIVING


_PARTS = attrgetter(*PARTS)
_VALUES = attrgetter(*(each.name for each in fields(RankView)))
