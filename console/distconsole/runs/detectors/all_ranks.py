"""Finds causes that slow all ranks alike, so that none of them stands out; each is reported once.

Steps take longer than in earlier runs of the same script on the same hosts, most ranks wait for
DataLoader workers that are too few, or all have waited for the start of some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import inf, isnan, nan
from statistics import median

import msgspec

from distconsole.model.findings import Severity
from distconsole.model.names import count_text
from distconsole.model.run_events import RunFinding, Window
from distconsole.model.time_text import ms_text
from distconsole.rpc.frames import PhaseEntry, WindowEntry
from distconsole.runs import pace
from distconsole.runs.detectors.ranks import RanksSeen, ranks_text
from distconsole.runs.detectors.slow_causes import Load, SlowCause
from distconsole.runs.diagnosis.causes import BETWEEN_HINT

DRIFT = "run.drift"
COUNTED_WINDOWS = 20
"""Number of windows of each rank that are compared, after its warm-up."""
FEWEST_WINDOWS = 5
OWN_SHARE = 0.2
"""Ranks work longer than before if the slowest one's own time has grown by this share of the steps' growth."""
START = "run.start"
OWN_PHASES = {
    "interpreter": "start Python",
    "import_torch": "import torch",
    "rendezvous": "come from there to asking for their group",
}
"""The parts of a start in which a rank waits for no other."""
STARVED = "run.data"
STARVED_SHARE = 0.25
"""Share of a step: a rank that waits as long for its data throughout ``PERSISTENT_SECONDS`` is short of data."""


class Earlier(msgspec.Struct, frozen=True):
    """Earlier runs: the newest, their number, the median of a step, and in the slowest of them.

    ``own_ms`` is the longest that a rank took for a step without its waits; None if these were not measured.
    """

    run: str
    count: int
    step_ms: float
    slowest_ms: float
    own_ms: float | None = None


class FirstSteps:
    """How long steps took in each rank's first windows."""

    def __init__(self) -> None:
        self._windows: Counter[int] = Counter()
        self._times: list[float] = []
        self._owns: dict[int, list[float]] = {}
        """Rank -> its times without its waits."""

    def add(self, rank: int, step_ms: float | None, waited_ms: float | None) -> None:
        """Add a window's mean step, and its waits if they were seen; NaN is left out."""
        if (
            step_ms is not None
            and 0 < step_ms < inf
            and self._windows[rank] < pace.WARM_UP_WINDOWS + COUNTED_WINDOWS
        ):
            self._windows[rank] += 1
            if self._windows[rank] > pace.WARM_UP_WINDOWS:
                self._times.append(step_ms)
                self._owns.setdefault(rank, []).append(
                    nan if waited_ms is None else step_ms - waited_ms
                )

    @property
    def are_all(self) -> bool:
        return len(self._times) == COUNTED_WINDOWS * len(self._windows) > 0

    @property
    def median_ms(self) -> float | None:
        """The median; None of a few."""
        return median(self._times) if len(self._times) >= FEWEST_WINDOWS else None

    @property
    def own_ms(self) -> float | None:
        """Median own time of the slowest rank in a step; None if its waits were not measured."""
        owns = self._owns.values()
        unseen = any(isnan(own) for each in owns for own in each)
        return None if unseen or not owns else max(map(median, owns))


class AllRanksWatch:
    """Takes every window; compares the run with ``earlier`` ones, if there are any."""

    def __init__(self, ranks: RanksSeen, load: Load, earlier: Earlier | None) -> None:
        self._ranks = ranks
        self._load = load
        self._earlier = earlier
        self._steps = FirstSteps()
        self._newest: dict[int, Window] = {}
        self._seen: set[int] = set()
        """Ranks with windows, also those of which none was kept."""
        self._waiting: Counter[int] = Counter()
        """Rank -> in how many windows running it has waited for its data."""
        self._starved: set[int] | None = set()
        """Ranks that have been short of data for long; None once reported."""
        self._phases: dict[int, dict[str, float]] | None = {}
        """Rank -> phase -> when it was reached, in seconds since the rank was started; None once all have made a step."""
        self._children: set[int] = set()
        """Ranks that another process of the script started: its time before that is no part of their start."""

    def add(self, window: Window) -> Iterator[RunFinding]:
        """Take one rank's window; yield new findings."""
        self._newest[window.rank] = window
        self._seen.add(window.rank)
        if self._earlier is not None:
            yield from self._compare(self._earlier, window)
        if window.workers is not None or window.rank in self._waiting:
            yield from self._look_at_workers(window)

    def saw(self, entry: WindowEntry) -> bool:
        """Note a rank's window; return False if ``add`` is to take it whole."""
        self._seen.add(entry.rank)
        if self._earlier is not None or entry.rank in self._waiting:
            return False
        step_ms = entry.step_ms[0] if entry.step_ms else None
        return entry.workers is None or _share(entry.data_ms, step_ms) < STARVED_SHARE

    def started(self, phase: PhaseEntry, t: float) -> Iterator[RunFinding]:
        """Take the progress of a rank's start; yield the late ranks, once all have made their first step."""
        if self._phases is None:
            return
        self._phases.setdefault(phase.rank, {})[phase.phase] = phase.seconds
        if phase.child:
            self._children.add(phase.rank)
        begun = {rank for rank, reached in self._phases.items() if "first_step" in reached}
        if phase.phase == "first_step" and begun >= self._ranks.living.keys():
            alike = self._phases.keys() & self._children or self._phases.keys()
            phases = {rank: self._phases[rank] for rank in alike}
            self._phases = None
            yield from self._late_starts(phases, t)

    def _late_starts(self, phases: dict[int, dict[str, float]], t: float) -> Iterator[RunFinding]:
        for name, words in OWN_PHASES.items():
            took = {
                rank: pace.phase_seconds(reached, name)
                for rank, reached in sorted(phases.items())
                if name in reached
            }
            late, usual = pace.find_late(took)
            if late:
                text = f"{ranks_text(late)} took {took[late[0]]:.1f} s to {words}, the others {usual:.1f} s: all waited for that"
                hint = "look at the file system of Python and the script there, and at what runs beside it: distconsole check"
                yield self._ranks.finding(t, START, text, late, severity=Severity.INFO, hint=hint)

    def _look_at_workers(self, window: Window) -> Iterator[RunFinding]:
        rank, starved = window.rank, self._starved
        if starved is None or window.workers is None or _data_share(window) < STARVED_SHARE:
            self._waiting.pop(rank, None)
            (starved or set()).discard(rank)
            return
        self._waiting[rank] += 1
        if self._waiting[rank] < pace.PERSISTENT_SECONDS:
            return
        starved.add(rank)
        if 2 * len(starved) <= len(self._seen):
            return
        cause = self._load.cause_of((rank,), {rank: window}, window.t)
        if cause is not None and cause.kind == "workers":
            self._starved = None
            yield self._starved_finding(sorted(starved), window, cause)

    def _starved_finding(self, ranks: list[int], window: Window, cause: SlowCause) -> RunFinding:
        windows = [self._newest[rank] for rank in ranks]
        share = median(map(_data_share, windows))
        who = f"{count_text(len(ranks), 'rank')} of {len(self._seen):,} wait for data"
        if len(ranks) == 1:
            who = f"rank {ranks[0]} waits for data"
        text = f"{who} in {100 * share:.0f} % of a step: of rank {window.rank}, {cause.text}"
        found = self._ranks.finding(window.t, STARVED, text, ranks, hint=cause.hint)
        return msgspec.structs.replace(found, kind=cause.kind)

    def _compare(self, earlier: Earlier, window: Window) -> Iterator[RunFinding]:
        waited = None if window.waited_ms is None else window.waited_ms[0]
        self._steps.add(window.rank, window.step_ms_mean if window.steps else None, waited)
        if self._steps.are_all:
            self._earlier = None
            step_ms = self._steps.median_ms
            if step_ms is not None and step_ms > (1 + pace.UNUSUAL_SHARE) * earlier.slowest_ms:
                yield self._finding(earlier, step_ms, window.t)

    def _finding(self, earlier: Earlier, step_ms: float, t: float) -> RunFinding:
        more = earlier.count - 1
        others = f" and {count_text(more, 'run')} before it" if more else ""
        hosts = tuple(sorted({each.host for each in self._newest.values()}))
        between = len(hosts) > 1 and self._is_between(earlier, step_ms)
        cause = self._load.cause_by_host(self._newest, t)
        if between and cause is not None and cause.kind != "network":
            cause = None  # it would make a rank work longer
        why = cause.text if cause else "no rank works longer, all wait longer" if between else ""
        compare = f"distconsole compare {earlier.run} {self._ranks.run}"
        finding = self._ranks.finding(
            t,
            DRIFT,
            f"steps take {100 * (step_ms / earlier.step_ms - 1):.0f} % longer than in {earlier.run}{others} "
            f"on the same hosts: {ms_text(step_ms)}, there {ms_text(earlier.step_ms)}"
            + (f": {why}" if why else ""),
            hosts=hosts,
            severity=Severity.WARN if cause else Severity.INFO,
            hint=cause.hint if cause else f"{BETWEEN_HINT}; {compare}" if between else compare,
        )
        return msgspec.structs.replace(finding, kind=cause.kind) if cause else finding

    def _is_between(self, earlier: Earlier, step_ms: float) -> bool:
        """Return True if the longer time of steps is in the waits of all ranks: the slowest one's own time is as it was."""
        own = self._steps.own_ms
        if own is None or earlier.own_ms is None:
            return False
        return own - earlier.own_ms <= OWN_SHARE * (step_ms - earlier.step_ms)


def _data_share(window: Window) -> float:
    return _share(window.data_ms, window.step_ms_mean)


def _share(data_ms: float | None, step_ms: float | None) -> float:
    return (data_ms or 0.0) / step_ms if step_ms else 0.0
