"""What a hostile node invents: ranks, hosts and GPUs that the run's plan does not have."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator

import msgspec
import pytest

from distconsole.model.findings import Severity
from distconsole.model.names import RunId
from distconsole.model.run_events import PlanMade, PlannedHost, RunFinding
from distconsole.rpc import frames
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.planned import SPAWNED_A_HOST, UNPLANNED_RANKS, rank_count, reducer_of
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.timeline import RunTimeline
from fakes.journals import Journal

PLAN = Journal(hosts=2, per_host=2).plan()
HOSTS = ("node1", "node2")
INVENTED = 1_000_000


def lies(count: int) -> Iterator[frames.JournalEntry]:
    """Entries about ``count`` ranks from 4 on, of every kind that names one."""
    for number in range(count):
        at = {"seq": number + 1, "t": 1000.0 + number / 1000, "rank": 4 + number % 999_990}
        match number % 6:
            case 0:
                yield frames.StateEntry(**at, local_rank=0, pid=1, state="running")
            case 1:
                yield frames.WindowEntry(**at, step=9, steps=10, step_ms=(5.0, 5.0), samples_s=1e6)
            case 2:
                yield frames.PhaseEntry(**at, phase="import_torch", seconds=1.0)
            case 3:
                yield frames.CheckEntry(**at, step=9, parameters=f"{number:x}")
            case 4:
                yield frames.LogEntry(**at, stream=f"s{number}", offset=0, text="half a line")
            case _:
                yield frames.NoteEntry(**at, check="run.rank_lost", severity="warn", summary="x")


class Picture:
    """A run as it is shown, of what its nodes tell."""

    def __init__(self, reducer: RunReducer) -> None:
        self.reducer = reducer
        self.timeline, self.history = RunTimeline(), RankHistory()
        self.timeline.apply(PLAN)

    def hear(self, host: str, entry: frames.JournalEntry) -> None:
        for event in self.reducer.feed(host, entry, entry.t):
            self.timeline.apply(event)
            self.history.apply(event)

    @property
    def size(self) -> int:
        return len(pickle.dumps((self.reducer, self.timeline, self.history)))

    def said(self, check: str = "run.unplanned") -> list[RunFinding]:
        return [each for each in self.timeline.findings if each.check == check]


def record() -> RunRecord:
    plan = msgspec.json.encode(PLAN)
    return RunRecord(RunId("digits-1121-a3f9"), hosts=HOSTS, plan=plan)


def test_a_million_invented_ranks_are_one_finding_that_names_the_node_and_cost_no_memory() -> None:
    picture = Picture(reducer_of(record()))
    for entry in lies(600):
        picture.hear("node2", entry)
    after_few = picture.size
    for entry in lies(INVENTED):
        picture.hear("node2", entry)
    assert picture.size < after_few + 1000
    assert sorted(picture.timeline.ranks) == [0, 1, 2, 3]
    assert not picture.timeline.outlived
    (found,) = picture.said()
    assert (found.hosts, found.severity) == (("node2",), Severity.WARN)
    assert found.summary.startswith("node2 reports rank 4, which this run does not have")
    for host in HOSTS:
        picture.hear(
            host, frames.EndEntry(seq=9, t=3e3, state="succeeded", exit_code=0, seconds=9)
        )
    assert "1,000,600 entries of node2 about ranks" in picture.said()[-1].summary


def test_gpus_without_end_are_left_out() -> None:
    picture = Picture(reducer_of(record()))
    for number in range(5000):
        gpus = tuple(frames.GpuLoad(gpu=0, uuid=f"{number}-{n}", util=1.0) for n in range(2))
        picture.hear("node1", frames.SampleEntry(seq=number + 1, t=1e3 + number, gpus=gpus))
    assert len(picture.timeline.gpus) == 1024
    (found,) = picture.said()
    assert "more than 1,024 GPUs" in found.summary


def test_a_gpu_of_an_invented_rank_makes_no_rank() -> None:
    picture = Picture(reducer_of(record()))
    gpu = frames.GpuLoad(gpu=0, uuid="u", util=1.0, rank=70_000)
    picture.hear("node1", frames.SampleEntry(seq=1, t=1e3, gpus=(gpu,)))
    assert sorted(picture.timeline.ranks) == [0, 1, 2, 3]


def test_a_note_about_a_host_that_the_run_does_not_have_is_about_who_says_it() -> None:
    picture = Picture(reducer_of(record()))
    for host in ("node1", "node2"):
        note = {"check": "run.node_lost", "severity": "warn", "summary": "x", "host": f"{host}-b"}
        picture.hear(host, frames.NoteEntry(seq=1, t=1e3, **note))  # type: ignore[arg-type]
    assert [each.hosts for each in picture.said("run.node_lost")] == [("node1",), ("node2",)]
    assert not picture.timeline.outlived_hosts, "nobody lost is named: every host still tells"


def test_metrics_without_end_do_not_grow_a_rank() -> None:
    picture = Picture(reducer_of(record()))
    for number in range(2000):
        names: dict[str, float | None] = {f"m{number}-{n}": 1.0 for n in range(4)}
        points = {f"m{number}": [frames.MetricPoint(number, math.nan, None)]}
        entry = frames.WindowEntry(
            seq=number + 1,
            t=1e3 + 10 * number,
            rank=0,
            step=number,
            steps=1,
            metrics=names,
            points=points,
        )
        picture.hear("node1", entry)
    assert len(picture.timeline.ranks[0].metrics) <= 256
    assert len(picture.said("run.not_finite")) <= 256


@pytest.mark.parametrize(
    ("ranks", "count"),
    [
        (((0, 1), (2, 3)), 4),
        (((0, 1, 2), (3,)), 4),
        (((0,), (1,)), 2 * SPAWNED_A_HOST),
        (tuple((n,) for n in range(600)), 600 * SPAWNED_A_HOST),
    ],
)
def test_a_script_that_is_started_once_a_host_may_have_more_ranks(
    ranks: tuple[tuple[int, ...], ...], count: int
) -> None:
    hosts = tuple(
        PlannedHost(host=f"h{at}", ranks=each, command="", env={}) for at, each in enumerate(ranks)
    )
    world = sum(map(len, ranks))
    plan = PlanMade(t=1.0, run="r", launcher="single", why="", world_size=world, hosts=hosts)
    assert rank_count(plan) == count
    assert rank_count(None) == UNPLANNED_RANKS
