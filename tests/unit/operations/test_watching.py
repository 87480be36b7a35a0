"""What an operator wishes of a run that is watched; the nodes are faked."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest

from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import RunFinding, Window
from distconsole.operations.control import Control
from distconsole.operations.watching import WishCarrier, watch_run
from distconsole.rpc.link import ClockOffset
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import summary_of
from distconsole.runs.timeline import RunTimeline
from distconsole.session import Session
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
