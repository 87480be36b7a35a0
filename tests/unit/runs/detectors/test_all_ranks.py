"""What slows all ranks alike: steps longer than in earlier runs of the same, and too few DataLoader workers; said once.
What a hostile node invents: ranks, hosts and GPUs that the run's plan does not have.
"""

import math
import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from distconsole.model.findings import Severity
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Run
from distconsole.model.run_events import NodeSample, PlanMade, PlannedHost, RunFinding, Window
from distconsole.rpc import frames
from distconsole.rpc.frames import PhaseEntry, StateEntry
from distconsole.rpc.wire import encode_entry
from distconsole.runs.detectors.all_ranks import COUNTED_WINDOWS, AllRanksWatch, Earlier
from distconsole.runs.detectors.ranks import RanksSeen
from distconsole.runs.detectors.slow_causes import Load
from distconsole.runs.following.follow import EntryWriter, replay
from distconsole.runs.rank_history import RankHistory
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.earlier import COMPARED, find_earlier
from distconsole.runs.store.planned import SPAWNED_A_HOST, UNPLANNED_RANKS, rank_count, reducer_of
from distconsole.runs.store.run_file import RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.runs.timeline import RunTimeline
from fakes import scenes
from fakes.blank import blank
from fakes.journals import Journal

BEFORE = Earlier("train-1123-89c0dd", 1, 18.0, 18.0)


def windows(slow: float, seconds: int = 60) -> Iterator[Window]:
    """Yield what four ranks tell; their first seconds are slow, as they always are."""
    for second in range(seconds):
        for rank in range(4):
            usual = scenes.window(rank, 10 * second, scenes.START + second)
            step_ms = 18.0 * slow if second > 3 else 500.0
            yield structs.replace(usual, step_ms_mean=step_ms)


def found(
    slow: float, earlier: Earlier | None = BEFORE, waited: float | None = None, **node: Any
) -> list[RunFinding]:
    ranks = RanksSeen(scenes.RUN)
    load = Load(ranks)
    for host in ("node1", "node2"):
        own = node if host == "node2" else {}
        sample = blank(
            NodeSample,
            t=scenes.START + COUNTED_WINDOWS,
            run=scenes.RUN,
            host=host,
            **{"cpu": 40.0, "net_resent_s": 0.0, **own},
        )
        assert list(load.taken(iter([sample]))) == [sample]
    watch = AllRanksWatch(ranks, load, earlier)
    waits = None if waited is None else (waited, 0.0, 0.0, waited, 0.0)
    told = (structs.replace(window, waited_ms=waits) for window in windows(slow))
    return list(chain.from_iterable(map(watch.add, told)))


def test_longer_steps_than_before_are_told_once() -> None:
    (finding,) = found(1.2)
    assert (finding.check, finding.severity) == ("run.drift", Severity.INFO)
    assert finding.hosts == ("node1", "node2")
    assert finding.summary == (
        "steps take 20 % longer than in train-1123-89c0dd on the same hosts: 21.6 ms, there 18 ms"
    )
    assert finding.hint.startswith("distconsole compare train-1123-89c0dd ")


def test_what_tells_one_host_from_the_others_then_is_said_with_it() -> None:
    (finding,) = found(1.2, net_resent_s=400.0)
    assert (finding.severity, finding.kind) == (Severity.WARN, "network")
    assert finding.summary.endswith("node2 sends 400 TCP segments again a second, the others 0")


@pytest.mark.parametrize(
    ("waited", "own_ms", "told"), [(12.0, 9.5, True), (2.0, 9.5, False), (12.0, None, False)]
)
def test_where_no_rank_works_longer_it_is_what_is_between_them(
    waited: float, own_ms: float | None, told: bool
) -> None:
    earlier = structs.replace(BEFORE, own_ms=own_ms)
    (finding,) = found(1.2, earlier, waited)
    assert finding.severity is Severity.INFO
    assert finding.summary.endswith(": no rank works longer, all wait longer") is told
    assert ("check --only net,coll" in finding.hint) is told
    (finding,) = found(1.2, earlier, waited, cpu=99.0)
    assert (finding.kind == "processors") is not told, "that would make ranks work longer"
    (finding,) = found(1.2, earlier, waited, net_resent_s=400.0)
    assert finding.kind == "network"


@pytest.mark.parametrize(
    ("slow", "earlier"),
    [
        (1.05, BEFORE),
        (0.5, BEFORE),
        (1.2, Earlier("train-1123-89c0dd", 3, 18.0, 21.0)),
        (1.2, None),
    ],
    ids=["a little", "faster", "as the slowest before", "no run before"],
)
def test_what_was_so_before_is_not_told(slow: float, earlier: Earlier | None) -> None:
    assert found(slow, earlier) == []


def starving(
    seconds: int = 30, of: int = 4, data: float = 0.5, cpu: float = 30.0, busy: float = 97.0
) -> list[RunFinding]:
    """Return what is found where so many of four ranks, each with two workers, wait for data."""
    ranks = RanksSeen(scenes.RUN)
    load, found = Load(ranks), []
    watch = AllRanksWatch(ranks, load, None)
    for window in windows(1.0, seconds):
        ranks.hosts[window.rank] = window.host
        sample = blank(NodeSample, t=window.t, run=scenes.RUN, host=window.host, cpu=cpu, cpus=64)
        assert list(load.taken(iter([sample]))) == [sample]
        waits = {"data_ms": data * (window.step_ms_mean or 0.0), "workers": (2, busy, 0.0)}
        found += watch.add(structs.replace(window, **waits) if window.rank < of else window)
    return found


def test_that_most_ranks_wait_for_too_few_workers_is_told_once() -> None:
    (finding,) = starving(of=3)
    assert (finding.check, finding.kind, finding.severity) == (
        "run.data",
        "workers",
        Severity.WARN,
    )
    assert finding.hosts == ("node1", "node2")
    assert finding.summary == (
        "3 ranks of 4 wait for data in 50 % of a step: of rank 2, its 2 DataLoader workers use a "
        "processor each, and 45 of 64 of node2 are idle"
    )
    assert "num_workers" in finding.hint


@pytest.mark.parametrize(
    "told",
    [{"seconds": 4}, {"of": 2}, {"data": 0.2}, {"cpu": 99.0}, {"busy": 40.0}],
    ids=["not for long", "half of the ranks", "little", "no idle processor", "workers that rest"],
)
def test_a_wait_for_data_that_more_workers_would_not_mend_is_not_told(
    told: dict[str, Any],
) -> None:
    assert starving(**told) == []


def starts(**of_the_last: float) -> list[RunFinding]:
    """Return what is found where four ranks start alike, but for these phases of the last one."""
    ranks = RanksSeen(scenes.RUN)
    watch, found = AllRanksWatch(ranks, Load(ranks), None), []
    usual = {
        "interpreter": 0.3,
        "import_torch": 2.0,
        "rendezvous": 1.0,
        "init_process_group": 1.0,
        "first_step": 3.0,
    }
    for rank in range(4):
        ranks.hosts[rank] = f"node{rank // 2 + 1}"
        ranks.living[rank] = StateEntry(
            seq=1, t=0.0, rank=rank, local_rank=0, pid=1, state="running"
        )
    for rank in range(4):
        at = 0.0
        for phase, seconds in {**usual, **(of_the_last if rank == 3 else {})}.items():
            at += seconds
            entry = PhaseEntry(seq=1, t=at, rank=rank, phase=phase, seconds=at)
            found += watch.started(entry, scenes.START + at)
    return found


def test_a_rank_that_all_have_waited_for_at_the_start_is_told_once_all_make_steps() -> None:
    (finding,) = starts(import_torch=41.0)
    assert (finding.check, finding.rank, finding.hosts) == ("run.start", 3, ("node2",))
    assert (
        finding.summary
        == "rank 3 took 41.0 s to import torch, the others 2.0 s: all waited for that"
    )


def test_what_a_process_did_before_it_started_ranks_is_no_part_of_their_start() -> None:
    """Rank 0 has prepared for 40 s when it forks the others, whose own start begins then."""
    ranks = RanksSeen(scenes.RUN)
    watch, found = AllRanksWatch(ranks, Load(ranks), None), []
    for rank in range(4):
        ranks.living[rank] = StateEntry(
            seq=1, t=0.0, rank=rank, local_rank=0, pid=1, state="running"
        )
    for rank in range(4):
        began = 40.0 if rank == 0 else 0.0
        for phase, seconds in (("interpreter", 0.1), ("rendezvous", 1.0), ("first_step", 3.0)):
            seconds += 0.0 if phase == "interpreter" else began
            entry = PhaseEntry(
                seq=1, t=0.0, rank=rank, phase=phase, seconds=seconds, child=rank > 0
            )
            found += watch.started(entry, scenes.START + 44)
    assert found == []


@pytest.mark.parametrize("phases", [{}, {"import_torch": 3.9}, {"init_process_group": 60.0}])
def test_a_start_like_the_others_and_a_wait_for_others_are_not_told(
    phases: dict[str, float],
) -> None:
    assert starts(**phases) == []


def keep(
    store: RunStore,
    run: str,
    step_ms: float,
    script: str = "train.py",
    arguments: tuple[str, ...] = (),
) -> RunRecord:
    """Keep a run of two hosts whose steps took so long, those of its beginning longer."""
    plan = PlanMade(t=scenes.START, run=run, launcher="torch", why="", world_size=2, hosts=())
    record = RunRecord(
        run=RunId(run),
        started=scenes.START,
        hosts=("node1", "node2"),
        request=msgspec.json.encode(Run(script, arguments)),
        plan=msgspec.json.encode(plan),
    )
    with store.create(record) as run_file:
        writer = EntryWriter(run_file.path)
        for rank, host in enumerate(record.hosts):
            bodies = [
                {
                    "seq": number,
                    "t": scenes.START + number,
                    "kind": "window",
                    "rank": rank,
                    "step": number,
                    "steps": 1,
                    "step_ms": [step_ms if number > 3 else 900.0, None],
                }
                for number in range(1, 41)
            ]
            writer.put(
                [
                    StoredEntry(HostName(host), at + 1, scenes.START + at, encode_entry(body))
                    for at, body in enumerate(bodies)
                ]
            )
        writer.close()
    assert not writer.failure
    return record


def test_runs_of_the_same_script_arguments_and_hosts_are_found(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    mine = keep(store, "train-1124-000000", 99.0)
    assert find_earlier(store, mine) is None
    keep(store, "train-1120-000001", 30.0, "other/train.py")
    keep(store, "train-1120-000002", 30.0, arguments=("--wide",))
    keep(store, "eval-1120-000003", 30.0)
    assert find_earlier(store, mine) is None
    for number in range(COMPARED + 1):
        keep(store, f"train-1121-00000{number}", 20.0 + number)
    found = find_earlier(store, mine)
    assert (found.count, found.step_ms, found.slowest_ms) == (COMPARED, 22.0, 23.0)
    assert found.run == f"train-1121-00000{COMPARED}"


def test_what_was_found_is_kept_with_the_run_and_said_again_in_each_replay(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    record = keep(store, "train-1124-000000", 25.0)
    with store.create(replace(record, earlier=msgspec.json.encode(BEFORE))) as run_file:
        kept = run_file.record()
        told = list(replay(run_file, reducer_of(kept)))
    (finding,) = [event for event in told if isinstance(event, RunFinding)]
    assert (finding.check, finding.run) == ("run.drift", record.run)
    with store.create(record) as run_file:
        assert run_file.record().earlier, "what is not told again stays"
    broken = replace(kept, earlier=b"{")
    assert reducer_of(broken).ended is None


def test_a_store_that_cannot_be_read_has_no_earlier_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    mine = keep(store, "train-1124-000000", 25.0)
    (store.folder / "train-1123-000000.db").write_bytes(b"no database" * 999)
    assert find_earlier(store, mine) is None


PLAN = Journal(hosts=2, per_host=2).plan()
HOSTS = ("node1", "node2")
INVENTED = 100_000


def lies(count: int) -> Iterator[frames.JournalEntry]:
    """Entries about ``count`` ranks from 4 on, of every kind that names one."""
    for number in range(count):
        at = {"seq": number + 1, "t": 1000.0 + number / 1000, "rank": 4 + number % 99_990}
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


def test_invented_ranks_without_end_are_one_finding_that_names_the_node_and_cost_no_memory() -> (
    None
):
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
    assert "100,600 entries of node2 about ranks" in picture.said()[-1].summary


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
