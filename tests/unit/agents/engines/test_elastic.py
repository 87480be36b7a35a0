"""What node 0's shim makes of Horovod's driver: over the real socket, with a driver that the test speaks for."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from distconsole_agent.contract.runspec import parse_spec
from distconsole_agent.coordination.blame import Failure
from distconsole_agent.engines.elastic import (
    DRIVER_SOCKET,
    NO_PLACE,
    PATIENCE_SECONDS,
    Elastic,
    ElasticEvents,
    Slot,
    host_name,
)
from distconsole_agent.engines.kvstore import KeyValueStore, StoreRequest
from distconsole_agent.system.loop import Loop
from distconsole_agent.system.unix import connect

SPEC = {
    "run": "r",
    "secret": "00",
    "launcher": "horovod",
    "node_index": 0,
    "nodes": [
        {"host": "a", "address": "10.0.0.1", "ranks": [0]},
        {"host": "user@b", "address": "10.0.0.2", "ranks": [1, 2]},
    ],
    "ranks": [],
    "min_nodes": 1,
    "env": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "7"},
    "driver": ["python3", "{agent}", "elastic-driver"],
}
B0, B1 = Slot(1, 0), Slot(1, 1)


class Node:
    """Node 0's part, a connection as the driver has it, and what was asked for."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.loop = Loop(clock=lambda: self.now)
        self.told: list[tuple[str, Any]] = []
        self.elastic = Elastic(self.loop, parse_spec(SPEC), self._events())
        self.elastic.open(str(folder), cast("KeyValueStore", self._store()))
        self.socket = connect(str(folder / DRIVER_SOCKET), 5)
        self.turn()

    def _store(self) -> SimpleNamespace:
        begin, release = ("begin", None), ("release", None)
        told = self.told
        return SimpleNamespace(
            clear=lambda: told.append(begin), release=lambda: told.append(release)
        )

    def _events(self) -> ElasticEvents:
        told = self.told
        return ElasticEvents(
            start=lambda slot, env: told.append(("start", (slot, env))),
            end=lambda slot: told.append(("end", slot)),
            note=lambda note: told.append(("note", note)),
            over=lambda why, failures: told.append(("over", (why, failures))),
        )

    def say(self, **message: Any) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        self.turn()

    def turn(self) -> None:
        for _ in range(4):
            self.loop.run_once(0.002)

    def heard(self) -> list[dict[str, Any]]:
        self.turn()
        self.socket.setblocking(False)
        try:
            text = self.socket.recv(1 << 16)
        except BlockingIOError:
            text = b""
        return [json.loads(line) for line in text.splitlines()]

    def start(self, met: bool = True) -> None:
        """All ranks run, have found each other, and everybody has heard so."""
        self.say(round=["0-a", "1-user-b"], size=3)
        for place in (["0-a", 0], ["1-user-b", 0], ["1-user-b", 1]):
            self.say(start=place, env={"HOROVOD_RANK": "0"})
        for key in [b"0", b"1", b"2"] if met else []:
            self.elastic.kept(StoreRequest(b"PUT", b"global", key, b"x"))
        self.told.clear()
        self.heard()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.socket.close()
    made.elastic.close()
    made.loop.close()
    assert not (tmp_path / DRIVER_SOCKET).exists()


def failed(rank: int, node: int = 1) -> Failure:
    return Failure(node, rank, 7, 10**9, 137, 9, "killed by SIGKILL", "Traceback\n  x")


def test_what_the_driver_wants_started_and_ended_reaches_the_right_node(node: Node) -> None:
    node.say(start=["1-user-b", 1], env={"HOROVOD_RANK": "2"})
    assert node.elastic.running == {B1}
    node.say(end=["1-user-b", 1])
    node.say(end=["1-user-b", 0])  # it does not run
    (kind, note) = node.told.pop()
    assert node.told == [("start", (B1, {"HOROVOD_RANK": "2"})), ("end", B1)]
    assert (kind, note.check, note.rank) == ("note", "run.rank_lost", 2)
    assert note.summary == "rank 2 on user@b is ended: Horovod uses user@b no more"


def test_the_driver_hears_of_each_end_once(node: Node) -> None:
    node.start()
    node.elastic.ended(B0, 137)
    node.elastic.ended(B0, 0)
    assert node.heard() == [{"ended": ["1-user-b", 0, 137]}]


def test_the_driver_hears_of_the_plans_hosts_and_of_a_lost_one(node: Node) -> None:
    assert node.heard() == [{"hosts": [["0-a", 1], ["1-user-b", 2]], "min_hosts": 1}]
    node.start()
    node.elastic.ended(B1, 0)
    node.heard()
    node.elastic.node_lost(1)
    assert node.heard() == [{"hosts": [["0-a", 1]], "min_hosts": 1}, {"ended": ["1-user-b", 0, 1]}]


def test_a_failure_that_is_outlived_is_told_with_what_the_rank_died_of(node: Node) -> None:
    node.start()
    node.elastic.failed(failed(2))
    node.elastic.ended(B1, 137)
    assert node.told == [("release", None)]  # what becomes of the run is the driver's to say
    node.told.clear()
    node.say(outlived=["1-user-b", 0])  # of which nothing is known
    node.say(outlived=["1-user-b", 1])
    ((kind, note),) = node.told
    assert (kind, note.check, note.severity) == ("note", "run.rank_lost", "warn")
    assert (note.rank, note.host, note.seen) == (2, "user@b", "Traceback\n  x")
    assert note.summary.startswith("rank 2 on user@b failed: killed by SIGKILL; Horovod goes on")


def test_it_is_said_for_whom_horovod_waits_after_a_failure(node: Node) -> None:
    node.start()
    node.elastic.ended(B0, 137)
    node.say(outlived=["1-user-b", 0])
    node.elastic.asked(
        StoreRequest(b"GET", b"rank_and_size", b"1-user-b:1", b""), lambda _place: None
    )
    node.told.clear()
    node.now += PATIENCE_SECONDS
    node.turn()
    ((kind, note),) = node.told
    assert (kind, note.check) == ("note", "run.awaited")
    assert note.summary == (
        "Horovod waits for rank 0, which has not noticed the failure: 7 s at most"
    )


def test_nobody_is_awaited_once_all_have_come_or_the_run_is_over(node: Node) -> None:
    node.start()
    node.elastic.ended(B0, 137)
    node.say(outlived=["1-user-b", 0])
    node.say(round=["0-a"], size=1)
    node.say(outlived=["0-a", 0])
    node.say(over="")
    node.told.clear()
    node.now += PATIENCE_SECONDS
    node.turn()
    assert not node.told


def test_a_new_round_begins_with_an_empty_store_and_is_said(node: Node) -> None:
    node.say(round=["0-a", "1-user-b"], size=3)
    assert node.told == [("begin", None)]
    node.say(round=["0-a"], size=1)
    assert node.told[1] == ("begin", None)
    assert node.told[2][1].summary == "Horovod goes on with 1 of 3 ranks, on a"


def test_a_rank_that_asks_for_its_place_hears_what_the_driver_says(node: Node) -> None:
    answers: list[bytes] = []
    question = StoreRequest(b"GET", b"rank_and_size", b"1-user-b:1", b"")
    assert node.elastic.asked(question, answers.append)
    (ask,) = [each for each in node.heard() if "ask" in each]
    assert (ask["host"], ask["slot"], answers) == ("1-user-b", 1, [])
    node.say(answer=ask["ask"], place="1,2,1,2,0,1")
    assert answers == [b"1,2,1,2,0,1"]
    assert not node.elastic.asked(question._replace(scope=b"global"), answers.append)


def test_ranks_begin_to_look_for_each_other_once_all_are_there(node: Node) -> None:
    node.start(met=False)
    look = StoreRequest(b"GET", b"global", b"", b"")
    for key in ("rank_{}", "{}"):
        look = look._replace(key=key.format(0).encode())
        for rank in range(3):
            assert node.elastic.holds(look)
            assert not node.elastic.holds(look._replace(scope=b"local_0-a"))
            assert not node.told
            put = StoreRequest(b"PUT", b"global", key.format(rank).encode(), b"x")
            node.elastic.kept(put)
        assert (node.elastic.holds(look), node.told) == (False, [("release", None)])
        node.told.clear()
    node.say(round=["0-a"], size=1)
    assert node.elastic.holds(look)


def test_no_rank_waits_for_one_that_has_ended(node: Node) -> None:
    node.start(met=False)
    look = StoreRequest(b"GET", b"global", b"0", b"")
    assert node.elastic.holds(look)
    node.elastic.ended(B0, 0)
    assert (node.elastic.holds(look), node.told) == (False, [("release", None)])


def test_a_rank_that_fails_before_all_have_met_ends_the_run(node: Node) -> None:
    node.start(met=False)
    node.elastic.failed(failed(1))
    node.elastic.ended(B0, 137)
    over = ("a rank ended before all had met", [failed(1)])
    assert node.told == [("release", None), ("over", over)]
    node.elastic.ended(B1, 1)
    node.say(over="")
    assert [kind for kind, _ in node.told].count("over") == 1


@pytest.mark.parametrize("key", [b"2-c:0", b"0-a:1", b"0-a", b"0-a:x", b"0-a:-1"])
def test_who_is_not_in_the_plan_has_no_place(node: Node, key: bytes) -> None:
    answers: list[bytes] = []
    node.heard()
    assert node.elastic.asked(StoreRequest(b"GET", b"rank_and_size", key, b""), answers.append)
    assert (answers, node.heard()) == ([NO_PLACE], [])
    assert host_name(3, "user@gpu_1.x:y/z") == "3-user-gpu-1.x-y-z", "what may stand in a path"


def test_the_end_comes_with_every_failure_and_is_the_last_that_counts(node: Node) -> None:
    node.start()
    node.elastic.failed(failed(1))
    node.elastic.failed(failed(0, node=1))  # no rank of that node
    node.say(over="too few")
    node.say(end=["0-a", 0])
    assert node.told == [("over", ("too few", [failed(1)]))]
    assert node.elastic.is_over


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense",
        b"[" * 60_000,
        b"[]",
        b'{"start": ["9-z", 0], "env": {}}',
        b'{"start": ["0-a", 1], "env": {}}',
        b'{"start": ["0-a", -1], "env": {}}',
        b'{"start": "0-a", "env": {}}',
        b'{"start": ["0-a", 0]}',
        b'{"start": ["0-a", 0], "env": []}',
        b'{"round": ["9-z"], "size": 1}',
        b'{"answer": 99, "place": "0"}',
    ],
)
def test_a_driver_that_speaks_nonsense_is_hung_up_on(node: Node, message: bytes) -> None:
    node.heard()
    node.socket.sendall(message + b"\n")
    node.turn()
    node.socket.setblocking(True)
    assert node.socket.recv(1) == b""
    assert not node.told
    node.elastic.node_lost(1)  # nobody hears it


def test_there_is_one_driver(node: Node, tmp_path: Path) -> None:
    with connect(str(tmp_path / DRIVER_SOCKET), 5) as second:
        node.turn()
        assert second.recv(1) == b""
    node.say(start=["0-a", 0], env={})
    assert node.told
