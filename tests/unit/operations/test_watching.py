"""What an operator wishes of a run that is watched; the nodes are faked.
``top --once``: every host that was reached is in the answer.
A job that nobody prepared is told as a run: its ranks, its lines once, its GPUs; and its end when all are gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import UNSET

from distconsole.model.cluster import Cluster, Host
from distconsole.model.events import HostStatus
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import (
    GpuSample,
    LinkChanged,
    LogLine,
    NodeSample,
    RankChanged,
    RunFinding,
    Window,
)
from distconsole.operations import top
from distconsole.operations.control import Control
from distconsole.operations.job_watch import GONE_SECONDS, Followed
from distconsole.operations.watching import WishCarrier, watch_run
from distconsole.rpc.frames import JobPart, LogPart, NodeLoad, SampleBody, Survey
from distconsole.rpc.link import ClockOffset
from distconsole.runs.diagnosis.found import join_surveys
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import summary_of
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session
from fakes.blank import blank
from fakes.streams import PlayedJournal

HOSTS = (HostName("a"), HostName("b"))


class Nodes:
    """A session whose host ``b`` answers nobody until it is let go."""

    def __init__(self) -> None:
        self.cluster = Cluster(tuple(Host(name) for name in HOSTS))
        self.let_go = threading.Event()
        self.told: list[tuple[str, str, float | None]] = []
        self.killed = threading.Event()

    def link(self, name: str) -> Node:
        if name == "b":
            assert self.let_go.wait(20)
        return Node(self, name)

    def has_link(self, host: Host) -> bool:
        return host.name != "b"


class Node:
    def __init__(self, nodes: Nodes, name: str) -> None:
        self._nodes = nodes
        self._name = name

    def request(self, _op: str, _timeout: float, **arguments: Any) -> dict[str, Any]:
        grace = arguments.get("grace")
        self._nodes.told.append((self._name, arguments["reason"], grace))
        if grace == 0:
            self._nodes.killed.set()
        return {}


def test_a_kill_does_not_wait_for_a_host_that_was_not_told_of_the_stop_yet() -> None:
    nodes, control = Nodes(), Control()
    carrier = WishCarrier(control, cast("Session", nodes), HOSTS, "run-1")
    control.stop()
    control.kill()
    try:
        assert nodes.killed.wait(20)
        assert {name for name, *_ in nodes.told} == {"a"}
    finally:
        nodes.let_go.set()
        carrier.close()
    assert sorted(nodes.told, key=str) == sorted(
        [(name, "sigint", grace) for name in HOSTS for grace in (None, 0.0)], key=str
    )


class Told(Nodes):
    """A session to one host that tells of a run to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster((Host(HOSTS[0]),))

    def link(self, name: str) -> Any:
        return ToldNode(self, name)


class ToldNode(Node):
    def clock_offset(self, _pings: int) -> ClockOffset:
        return ClockOffset(0.0, 0.0)

    def stream(self, _op: str, **_arguments: object) -> PlayedJournal:
        over = {"state": "succeeded", "exit_code": 0}
        window = {"kind": "window", "rank": 0, "step": 9, "steps": 10, "metrics": {"loss": 0.5}}
        verdict = {"kind": "verdict", **over, "first_failure": None}
        told = [window, verdict, {"kind": "end", **over, "seconds": 2.0}]
        entries = [{"seq": seq, "t": 100.0 + seq, **body} for seq, body in enumerate(told, 1)]
        return PlayedJournal([{"entries": entries}])


@pytest.mark.parametrize("folds", [False, True])
def test_a_run_is_folded_once_and_its_summary_kept(
    folds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[object] = []
    apply = RunTimeline.apply

    def noted(timeline: RunTimeline, event: Any) -> None:
        applied.append(event)
        apply(timeline, event)

    monkeypatch.setattr(RunTimeline, "apply", noted)
    control, store = Control(), RunStore(tmp_path)
    control.timeline = RunTimeline() if folds else None
    record = RunRecord(RunId("run-1"), started=100.0, hosts=HOSTS[:1])
    events = []
    for event in watch_run(record, cast("Session", Told()), control, store):
        events.append(event)
        if control.timeline is not None:
            control.timeline.apply(event)
    assert applied == events
    with store.open(RunId("run-1")) as run_file:
        kept = summary_of(run_file)
    assert (kept.state, kept.steps, kept.metrics) == ("succeeded", 10, {})
    assert applied == events  # it was kept, and not made of what is stored


class Late(PlayedJournal):
    """Has nothing to tell until it is let go, and then one thing, and the rest a second later."""

    may_tell = 0

    def take(self, timeout: float | None) -> Any:
        if not self.may_tell:
            return None
        self.may_tell -= 1
        return super().take(timeout)

    def let_go(self, things: int = 1) -> None:
        self.may_tell = things
        self._listener()
        if things == 1:
            threading.Timer(1.0, self.let_go, (9,)).start()


class OneLate(Nodes):
    """A session to two hosts, whose second tells what it has to tell only after the first."""

    def __init__(self, *told: list[dict[str, Any]]) -> None:
        super().__init__()
        over = {"state": "succeeded", "exit_code": 0}
        ends = [
            {"kind": "verdict", **over, "first_failure": None, "after": 4.0},
            {"kind": "end", **over, "seconds": 2.0, "after": 4.1},
        ]
        began = time.time()  # what is older is held until all have spoken
        pieces = [
            {"entries": [{"seq": seq, "t": began + body.pop("after"), **body}]}
            for entries in told
            for seq, body in enumerate([*entries, *map(dict, ends)], 1)
        ]
        first = len(told[0]) + len(ends)
        self.late = Late(pieces[first:])
        self._streams = {HOSTS[0]: PlayedJournal(pieces[:first]), HOSTS[1]: self.late}

    def link(self, name: str) -> Any:
        node = ToldNode(self, name)
        node.stream = lambda _op, **_more: self._streams[HostName(name)]  # type: ignore[method-assign]
        return node


def test_who_passes_events_on_is_told_of_each_finding_once_however_late_a_host(
    tmp_path: Path,
) -> None:
    def window(rank: int, step: int, loss: float, after: float) -> dict[str, Any]:
        points = {"loss": [[step, loss, None]]}
        return {
            "kind": "window",
            "rank": rank,
            "step": step,
            "steps": 1,
            "after": after,
            "points": points,
            "metrics": {"loss": loss},
        }

    def begins(rank: int, after: float) -> dict[str, Any]:
        state = {"kind": "state", "rank": rank, "local_rank": 0, "state": "running"}
        return {**state, "pid": 9, "after": after}

    early = [begins(0, 0.0), window(0, 7, float("nan"), 1.0), window(0, 8, 1.0, 3.5)]
    late = [begins(1, 0.1), window(1, 8, 1.0, 3.6)]
    nodes, store = OneLate(early, late), RunStore(tmp_path)
    record = RunRecord(RunId("run-1"), started=100.0, hosts=HOSTS)
    found = []
    for event in watch_run(record, cast("Session", nodes), Control(), store):
        if isinstance(event, RunFinding):
            found.append(event.check)
        elif isinstance(event, Window) and (event.rank, event.step) == (0, 8):
            nodes.late.let_go()
    assert found == ["run.not_finite"]


A, B, C = HostName("a"), HostName("b"), HostName("c")


def sample(host: HostName) -> NodeSample:
    return NodeSample(
        t=1.0, run="", host=host, cpu=3.0, mem_used=1, mem_total=2, net_rx_s=None, net_tx_s=None
    )


class Watch(top.LoadWatch):
    """What hosts tell, as a list."""

    def __init__(self, *told: tuple[HostName, list[NodeSample | GpuSample] | HostStatus]) -> None:
        self._told = list(told)

    def next(self) -> tuple[HostName, list[NodeSample | GpuSample] | HostStatus] | None:
        return self._told.pop(0) if self._told else None


def test_a_host_without_a_sample_in_time_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "FIRST_SAMPLE_SECONDS", 0.05)
    gone = HostStatus(host=B, reachable=False, detail="gone")
    watch = Watch((A, [sample(A)]), (B, gone), (A, [sample(A)]))
    told = list(top._once(watch, [A, B, C]))
    assert told[:2] == [sample(A), gone]
    (late,) = told[2:]
    assert isinstance(late, HostStatus)
    assert (late.host, late.reachable) == (C, False)
    assert "told nothing of its load for 0.05 s" in late.detail


class Ends:
    """A host whose agent ends the stream once, and then goes on."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False
        self.told: SampleBody | None = SampleBody(t=1.0, node=NodeLoad(cpu=3.0))

    def link(self, _name: str) -> Ends:
        return self

    @contextmanager
    def stream(self, _op: str, **_arguments: object) -> Iterator[Ends]:
        self.asked += 1
        yield self

    def close(self) -> None:
        self.closed = True
        self.listener()

    def listen(self, listener: Callable[[], None]) -> None:
        self.listener = listener
        listener()

    def take(self, _timeout: float | None) -> SampleBody | None:
        if self.asked == 1 or self.closed:
            raise StopIteration
        told, self.told = self.told, None
        return told


def test_a_stream_that_an_agent_ends_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "RETRY_SECONDS", 0.01)
    host = Ends()
    watch = top.LoadWatch(cast("Session", host), [A], 1.0)
    try:
        told = (watch.next() for _ in range(100))
        assert any(news is not None and isinstance(news[1], list) for news in told)
    finally:
        watch.close()
    assert host.asked == 2


def survey(*pids: int, first: int = 0, logs: tuple[LogPart, ...] = (), key: str = "k") -> Survey:
    ranks = [{"rank": first + at, "pid": pid, "alive": True} for at, pid in enumerate(pids)]
    part = JobPart(key=key, launcher="torchrun", script="t.py", here=False, size=4, ranks=ranks)
    return Survey(jobs=(part,) if pids else (), logs=logs)


def log(*lines: str, inode: int = 7, ranks: tuple[int, ...] = (0,), **more: Any) -> LogPart:
    told = {"key": "k", "path": "/home/u/out.log", "stream": "out", "next": 9, **more}
    return LogPart(inode=inode, ranks=ranks, output="".join(f"{line}\n" for line in lines), **told)


def followed() -> Followed:
    surveys = {"n1": survey(11, 12), "n2": survey(11, 12, first=2)}
    (found,) = join_surveys(surveys)
    made = Followed(found)
    for host, told in surveys.items():
        list(made.take(host, told))
    return made


def test_ranks_begin_are_replaced_and_end() -> None:
    surveys = {"n1": survey(11, 12), "n2": survey(11, 12, first=2)}
    (found,) = join_surveys(surveys)
    made = Followed(found)
    plan = made.plan()
    assert (plan.run, plan.world_size, plan.found) == ("torchrun-t.py", 4, True)
    assert [(host.host, host.ranks) for host in plan.hosts] == [("n1", (0, 1)), ("n2", (2, 3))]
    told = [event for host, each in surveys.items() for event in made.take(host, each)]
    assert [(event.rank, event.state) for event in told if isinstance(event, RankChanged)] == [
        (rank, "running") for rank in range(4)
    ]
    told = [*made.take("n2", survey(11, 99, first=2)), *made.take("n1", survey(11))]
    assert [(e.rank, e.pid, e.state) for e in told if isinstance(e, RankChanged)] == [
        (3, 99, "running"),
        (1, 12, "exited"),
    ]


def test_a_job_is_over_once_all_its_processes_are_gone_for_a_while() -> None:
    made = followed()
    list(made.take("n1", survey()))
    assert not made.over
    list(made.take("n2", survey()))
    assert not made.over
    made.gone_at = (made.gone_at or 0.0) - GONE_SECONDS
    assert made.over
    list(made.take("n1", survey(50, 51)))
    assert not made.over


def test_a_file_that_hosts_share_is_told_once_and_lines_of_other_jobs_are_not() -> None:
    made = followed()
    first = survey(11, 12, logs=(log("a", "b"), log("c", inode=8, key="other")))
    lines = [event for event in made.take("n1", first) if isinstance(event, LogLine)]
    assert [(line.line, line.rank, line.host) for line in lines] == [
        ("a", 0, "n1"),
        ("b", 0, "n1"),
    ]
    second = survey(
        11, 12, first=2, logs=(log("a", "b", ranks=(2,)), log("d", inode=9, ranks=(2,)))
    )
    lines = [event for event in made.take("n2", second) if isinstance(event, LogLine)]
    assert [(line.line, line.rank) for line in lines] == [("d", 2)]
    lines = [
        e for e in made.take("n1", survey(11, 12, logs=(log("e"),))) if isinstance(e, LogLine)
    ]
    assert [(line.line, line.rank) for line in lines] == [("e", UNSET)]


def test_its_own_processes_are_no_strangers_on_a_gpu() -> None:
    sample = blank(
        GpuSample,
        t=1.0,
        host="n2",
        util=1.0,
        mem_used=1,
        mem_total=2,
        strangers=("12 u python", "77 v other"),
    )
    (told,) = followed().take("n2", [sample])
    assert isinstance(told, GpuSample)
    assert (told.run, told.rank, told.strangers) == ("torchrun-t.py", 3, ("77 v other",))


def test_a_host_that_is_lost_is_told_once_and_when_it_is_there_again() -> None:
    made, lost = followed(), HostStatus(host="n1", reachable=False, detail="timed out")
    there = HostStatus(host="n1", reachable=True)
    told = [event for news in (there, lost, lost, there) for event in made.take("n1", news)]
    assert [event.connected for event in told if isinstance(event, LinkChanged)] == [False, True]
