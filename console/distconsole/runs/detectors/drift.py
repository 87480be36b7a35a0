"""Whether steps take longer than in earlier runs of the same script on the same hosts; said once, of a run's first steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf
from statistics import median

import msgspec

from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding, Window
from distconsole.model.time_text import ms_text
from distconsole.runs.detectors.ranks import Ranks
from distconsole.runs.detectors.slow_causes import Load
from distconsole.runs.pace import UNUSUAL_SHARE, WARM_UP_WINDOWS

DRIFT = "run.drift"
COUNTED_WINDOWS = 20
"""So many of each rank's windows are compared, after those in which it warms up."""
FEWEST_WINDOWS = 5


class Earlier(msgspec.Struct, frozen=True):
    """What is known of earlier runs: the newest, how many, the median of a step there, and in the slowest of them."""

    run: str
    count: int
    step_ms: float
    slowest_ms: float


class FirstSteps:
    """How long steps took in each rank's first windows."""

    def __init__(self) -> None:
        self._windows: Counter[int] = Counter()
        self._times: list[float] = []

    def add(self, rank: int, step_ms: float | None) -> None:
        """Take a window's mean step; what is none is left out."""
        if (
            step_ms is not None
            and 0 < step_ms < inf
            and self._windows[rank] < WARM_UP_WINDOWS + COUNTED_WINDOWS
        ):
            self._windows[rank] += 1
            if self._windows[rank] > WARM_UP_WINDOWS:
                self._times.append(step_ms)

    @property
    def are_all(self) -> bool:
        """Whether those of all ranks that make steps are there."""
        return len(self._times) == COUNTED_WINDOWS * len(self._windows) > 0

    @property
    def median_ms(self) -> float | None:
        """The median; None of a few."""
        return median(self._times) if len(self._times) >= FEWEST_WINDOWS else None


class DriftWatch:
    """Compares a run with ``earlier`` ones, where there are such."""

    def __init__(self, ranks: Ranks, load: Load, earlier: Earlier | None) -> None:
        self._ranks = ranks
        self._load = load
        self._earlier = earlier
        self._steps = FirstSteps()
        self._newest: dict[int, Window] = {}

    def add(self, window: Window) -> Iterator[RunFinding]:
        """Take one rank's window; yield what there is to say once the first steps are there."""
        if self._earlier is None:
            return
        self._newest[window.rank] = window
        self._steps.add(window.rank, window.step_ms_mean if window.steps else None)
        if self._steps.are_all:
            earlier, self._earlier = self._earlier, None
            step_ms = self._steps.median_ms
            if step_ms is not None and step_ms > (1 + UNUSUAL_SHARE) * earlier.slowest_ms:
                yield self._finding(earlier, step_ms, window.t)

    def _finding(self, earlier: Earlier, step_ms: float, t: float) -> RunFinding:
        more = earlier.count - 1
        others = f" and {count_text(more, 'run')} before it" if more else ""
        cause = self._load.cause_by_host(self._newest, t)
        finding = self._ranks.finding(
            t,
            DRIFT,
            f"steps take {100 * (step_ms / earlier.step_ms - 1):.0f} % longer than in {earlier.run}{others} "
            f"on the same hosts: {ms_text(step_ms)}, there {ms_text(earlier.step_ms)}"
            + (f": {cause.text}" if cause else ""),
            hosts=tuple(sorted({each.host for each in self._newest.values()})),
            severity=Severity.WARN if cause else Severity.INFO,
            hint=cause.hint if cause else f"distconsole compare {earlier.run} {self._ranks.run}",
        )
        return msgspec.structs.replace(finding, kind=cause.kind) if cause else finding
