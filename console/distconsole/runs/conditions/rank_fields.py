"""The table of fields of conditions on a run's ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distconsole.expression.fields import Field, Fields, ValueKind
from distconsole.expression.units import Measure
from distconsole.model.run_events import GpuSample, NodeSample
from distconsole.runs.detectors.slowness import Straggler
from distconsole.runs.figures import RANK_GPU_FIGURES, STEP_FIGURES, condition_fields
from distconsole.runs.present import own_ms_of, present, rate_of
from distconsole.runs.rank_view import RankView
from distconsole.runs.timeline import RunTimeline


@dataclass(frozen=True, slots=True)
class RankOfRun:
    """A rank and the run that it is of; conditions are asked of these."""

    view: RankView
    run: RunTimeline
    rate: float | None = None
    """Its samples a second, when the run's newest event came."""
    run_rate: float | None = None
    """Those of all ranks then."""
    still: bool = False
    """It finished no step lately, though its host reports."""
    slow: Straggler | None = None
    """How slow it was then, if it was."""
    own_ms: float | None = None
    """Time of its last steps without its waits for others."""

    @property
    def gpu(self) -> GpuSample | None:
        return self.view.sample

    @property
    def silent_seconds(self) -> float | None:
        """Seconds since its last report, at the newest event of the run."""
        if self.view.last_seen is None or self.run.last_t is None:
            return None
        return max(0.0, self.run.last_t - self.view.last_seen)

    @property
    def run_seconds(self) -> float | None:
        if self.run.end is not None:
            return self.run.end.seconds
        if self.run.started is None or self.run.last_t is None:
            return None
        return max(0.0, self.run.last_t - self.run.started)

    def metric(self, name: str) -> float | None:
        return self.view.metrics.get(name)

    def run_metric(self, name: str) -> float | None:
        found = self.run.metric_last.get(name)
        return None if found is None else found.value


def ranks_of(run: RunTimeline) -> list[RankOfRun]:
    now = run.last_t or 0.0
    figures = present(run, now)
    slow = {each.rank: each for each in figures.slow}
    return [
        RankOfRun(
            view,
            run,
            rate_of(view, figures.sight(rank)),
            figures.samples_s,
            view in figures.standing,
            slow.get(rank),
            own_ms_of(view, figures.waits, figures.sight(rank)),
        )
        for rank, view in sorted(run.ranks.items())
    ]


def percent(part: float | None, whole: float | None) -> float | None:
    """Return the share of ``part`` in ``whole``; None if unknown."""
    return None if part is None or not whole else 100.0 * part / whole


def memory_share(name: str, attribute: str) -> Field[Any]:
    """Return the field for the share of memory in use, of rows that have their sample as ``attribute``."""

    def used_percent(row: object) -> float | None:
        sample: NodeSample | GpuSample | None = getattr(row, attribute)
        return None if sample is None else percent(sample.mem_used, sample.mem_total)

    return Field(name, used_percent, "part of the memory that is used", unit="%")


TEXT, FLAG = ValueKind.TEXT, ValueKind.FLAG
OF_TIME = {Measure.TIME: "step_ms"}

RANK_FIELDS: Fields[RankOfRun] = Fields(
    "ranks",
    (
        Field("rank", lambda row: row.view.rank, "its number"),
        Field("host", lambda row: row.view.host, "its host", TEXT),
        Field("local_rank", lambda row: row.view.local_rank, "its number on its host"),
        Field("pid", lambda row: row.view.pid, "its process"),
        Field(
            "state",
            lambda row: row.view.state.value,
            "starting, running, exited, failed, killed, lost or stalled",
            TEXT,
        ),
        Field("alive", lambda row: row.view.alive, "its process exists", FLAG),
        Field(
            "lost",
            lambda row: row.view.host in row.run.lost_hosts,
            "no connection to its host",
            FLAG,
        ),
        Field("exit", lambda row: row.view.exit_code, "its exit code"),
        Field("signal", lambda row: row.view.signal, "the signal that ended it"),
        Field("phase", lambda row: row.view.phase, "the phase of its start", TEXT),
        Field("silent", lambda row: row.silent_seconds, "since its last report", unit="s"),
        Field("still", lambda row: row.still, "it runs and finishes no step", FLAG),
        Field("slow", lambda row: bool(row.slow), "the others wait for it", FLAG),
        Field(
            "slow.part",
            lambda row: row.slow.part if row.slow else "",
            "the slow part of its steps",
            TEXT,
        ),
        Field(
            "slow.costs",
            lambda row: 100 * row.slow.cost_share if row.slow else None,
            "by how much a step would be shorter without it",
            unit="%",
        ),
        Field(
            "own", lambda row: row.own_ms, "a step without its waits for other ranks", unit="ms"
        ),
        Field(
            "step",
            lambda row: row.view.step,
            "the last step that it has done; beside a time: step_ms",
            twins=OF_TIME,
        ),
        Field("steps", lambda row: row.view.steps, "steps that it has done"),
        Field("skipped", lambda row: row.view.skipped, "steps whose optimizer did not run"),
        *condition_fields(STEP_FIGURES, "view"),
        Field(
            "data.share",
            lambda row: percent(row.view.data_ms, row.view.step_ms_mean),
            "part of a step that is waiting for data",
            unit="%",
        ),
        Field("samples_s", lambda row: row.rate, "samples a second"),
        Field("loss", lambda row: row.metric("loss"), "the same as metric.loss"),
        Field("gpu", lambda row: row.view.gpu, "its GPU's number"),
        *condition_fields(RANK_GPU_FIGURES, "gpu"),
        memory_share("mem.share", "gpu"),
        Field(
            "run.state",
            lambda row: row.run.end.state.value if row.run.end else "running",
            "running, succeeded, failed or stopped",
            TEXT,
        ),
        Field("run.seconds", lambda row: row.run_seconds, "duration of the run", unit="s"),
        Field("run.samples_s", lambda row: row.run_rate, "samples a second of all ranks"),
        Field("run.loss", lambda row: row.run_metric("loss"), "loss over all ranks"),
        Field(
            "run.restarts",
            lambda row: 0 if row.run.restart is None else row.run.restart.restart,
            "restarts of its ranks",
        ),
        Field("run.findings", lambda row: len(row.run.findings), "findings about it"),
    ),
    "metric",
    RankOfRun.metric,
    {"costs": "slow.costs", "data": "data_ms", "p95": "step_ms.p95"},
)
"""``metric.NAME`` is the last value that the rank reported under that name."""
