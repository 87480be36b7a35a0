"""The coordinator and its peers over real loopback sockets, in one loop whose clock is ours."""

import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.contract.runspec import FAILURE_GRACE_SECONDS
from distconsole_agent.coordination.blame import RunVerdict, StopRequest
from distconsole_agent.coordination.channel import (
    MAX_HELLO_BYTES,
    MAX_STRANGERS,
    LinkError,
    LinkTimes,
)
from distconsole_agent.coordination.coordinator import Coordinator
from distconsole_agent.coordination.link import SHIM_GONE, tell_death, tell_death_in_background
from distconsole_agent.coordination.peer import Peer
from distconsole_agent.coordination.whose import Ends, answer_of
from distconsole_agent.supervisor.runlog import keep_endpoint
from fakes.links import SECOND, TIMES, World, failure, raw_spec, spec

MakeWorld = Callable[..., World]


@pytest.fixture
def make_world() -> Iterator[MakeWorld]:
    made: list[World] = []

    def make(*args: Any, begin: bool = True, **kwargs: Any) -> World:
        made.append(world := World(*args, **kwargs))
        if begin:
            world.begin()
            world.turn(1.0)
        return world

    yield make
    for world in made:
        world.close()


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(3)


def end(world: World, heard: str = "verdict") -> None:
    """Have every node end, and wait until all have heard so."""
    for link in world.links:
        link.ended()
    nodes = range(len(world.links))
    world.until(lambda: all(world.heard(node, heard) for node in nodes))


def test_a_failure_stops_every_other_node_at_once(world: World) -> None:
    world.peers[0].failed(failure(1, int(world.now * SECOND)))
    world.settle()
    assert world.heard(0, "stop") == world.heard(2, "stop") == [("failure", 5.0)]
    assert world.heard(1, "stop") == []
    end(world)
    (verdict,) = world.heard(2, "verdict")
    assert verdict.first_failure.host == "host1"


def test_a_faster_stop_is_passed_on_and_a_slower_one_is_not(world: World) -> None:
    stop = StopRequest(2, int(world.now * SECOND), "sigint")
    world.peers[1].stopping(stop, 10.0)
    world.settle()
    world.coordinator.stopping(stop._replace(node=0), 60.0)
    world.peers[1].stopping(stop, 0.0)
    world.settle()
    assert world.heard(1, "stop") == [("sigint", 10.0), ("sigint", 0.0)]


def test_times_are_compared_on_one_clock(make_world: MakeWorld) -> None:
    world = make_world(3, skews_ns=(0, 5 * SECOND, -3 * SECOND))
    now_ns = int(world.now * SECOND)
    # Node 1 failed first and its clock is ahead; node 2's is behind.
    world.peers[1].failed(failure(2, now_ns + 2_000_000 - 3 * SECOND, "KeyError: second"))
    world.peers[0].failed(failure(1, now_ns + 1_000_000 + 5 * SECOND, "KeyError: first"))
    end(world)
    assert world.heard(0, "verdict")[0].first_failure.error == "KeyError: first"


def test_no_verdict_before_a_clock_is_known(make_world: MakeWorld) -> None:
    world = make_world(2, skews_ns=(0, 5 * SECOND), begin=False)
    world.begin()
    now_ns = int(world.now * SECOND)
    world.peers[0].failed(failure(1, now_ns + 1_000_000 + 5 * SECOND, "KeyError: first"))
    world.peers[0].ended()
    world.coordinator.failed(failure(0, now_ns + 2_000_000, "KeyError: second"))
    world.coordinator.ended()
    world.until(lambda: world.heard(0, "verdict"))
    assert world.heard(0, "verdict")[0].first_failure.error == "KeyError: first"


def test_a_cut_connection_comes_back_and_nothing_is_lost_or_doubled(world: World) -> None:
    world.relay.refuses = True
    world.relay.cut()
    world.turn(2.0)
    world.peers[0].failed(failure(1, int(world.now * SECOND)))
    world.coordinator.stopping(StopRequest(0, int(world.now * SECOND), "user"), 3.0)
    world.turn(2.0)
    assert world.heard(2, "stop") == []
    world.relay.refuses = False
    world.turn(3.0)
    assert world.heard(1, "stop") == world.heard(2, "stop") == [("user", 3.0)]
    for _ in range(3):
        world.relay.cut()
        world.turn(3.0)
    assert world.heard(2, "stop") == [("user", 3.0)]
    for link in world.links:
        link.ended()
    world.until(lambda: world.heard(1, "verdict") and world.heard(2, "verdict"))
    assert world.heard(2, "verdict")[0].state == "failed"
    assert world.heard(0, "note") == []


def test_a_node_that_stays_silent_is_lost_and_the_run_with_it(world: World) -> None:
    world.relay.silent = True
    waited = world.until(lambda: world.heard(0, "stop"))
    assert TIMES.give_up - 1 <= waited < TIMES.give_up + 5
    notes = [note for note in world.heard(0, "note") if note.check == "run.node_lost"]
    assert "host1" in notes[0].summary
    world.until(lambda: world.heard(1, "stop") and world.heard(2, "stop"))
    end(world, "finished")
    verdict = world.heard(0, "verdict")[0]
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert verdict.first_failure.error == "node host1 lost"
    assert verdict.first_failure.rank == 2
    # On the other side of the cut it is node 0 that is gone.
    assert world.heard(1, "verdict")[0].first_failure.error == "node host0 lost"


def test_a_quiet_network_is_not_a_dead_node(make_world: MakeWorld) -> None:
    world = make_world(3, times=LinkTimes())
    before = world.relay.connections
    world.relay.silent = True
    world.turn(45.0)
    world.relay.silent = False
    world.turn(10.0)
    assert world.relay.connections > before, "a silent link is replaced"
    assert not any(world.heard(node, "stop") for node in range(3))
    told = [(note.check, note.severity) for note in world.heard(0, "note")]
    assert told == [("run.unsupervised", "warn"), ("run.unsupervised", "info")]
    assert [note.summary for note in world.heard(0, "note")] == [
        "host1, host2 were not heard of for 10 s: the run goes on unsupervised there",
        "host1, host2 were heard of again after 46 s: the run is supervised",
    ]
    assert [note.severity for note in world.heard(2, "note")] == ["warn", "info"]
    world.peers[0].failed(failure(1, int(world.now * SECOND)))
    world.settle()
    assert world.heard(2, "stop") == [("failure", 5.0)]


def test_the_time_for_which_all_shims_were_stopped_is_no_silence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(selector: selectors.DefaultSelector, timeout: float | None = None) -> list[Any]:
        monkeypatch.undo()
        world.now += (
            10 * TIMES.give_up
        )  # as by scontrol suspend, which sends SIGSTOP to all at once
        return selector.select(timeout)

    monkeypatch.setattr(selectors.DefaultSelector, "select", stop)
    world.turn(2 * TIMES.silent)
    assert not any(world.told)


def test_only_the_quiet_since_the_ranks_start_counts_for_a_host(make_world: MakeWorld) -> None:
    world = make_world(2, times=LinkTimes(), begin=False)
    for peer in world.peers:
        peer.begin()
    world.turn(1.0)
    for spans_it, least, most in ((0.0, 0.0, 2.0), (1.5, 1.5, 3.5)):
        world.relay.silent = True
        world.turn(5.0)
        world.coordinator.begin()
        world.turn(spans_it)
        world.relay.silent = False
        world.turn(3.0)
        assert least <= world.coordinator.quiet_seconds["host1"] <= most


def test_a_fault_of_a_host_is_blamed_on_its_first_rank(make_world: MakeWorld) -> None:
    world = make_world(3, skews_ns=(0, 5 * SECOND, -3 * SECOND))
    world.coordinator.blame_host("host2", "ranks failed to connect")
    world.peers[0].failed(failure(1, int((world.now + 2) * SECOND) + 5 * SECOND, "KeyError: late"))
    world.settle()
    assert all(world.heard(node, "stop") == [("failure", 5.0)] for node in (0, 2))
    end(world)
    first = world.heard(0, "verdict")[0].first_failure
    assert (first.host, first.rank) == ("host2", 4)
    assert first.error == "ranks failed to connect"


def test_a_host_that_is_lost_is_not_heard_of_again(make_world: MakeWorld) -> None:
    world = make_world(2)
    world.relay.silent = True
    world.until(lambda: world.heard(0, "note"))
    world.until(lambda: world.heard(0, "stop"))
    told = [(note.check, note.severity) for note in world.heard(0, "note")]
    assert told == [("run.unsupervised", "warn"), ("run.node_lost", "fail")]
    assert "--lost-after" in world.heard(0, "note")[-1].hint
    world.turn(5.0)
    assert len(world.heard(0, "note")) == 2


def test_a_node_that_never_connects_is_lost(make_world: MakeWorld) -> None:
    world = make_world(2, begin=False)
    world.coordinator.begin()
    world.until(lambda: world.heard(0, "stop"))
    world.coordinator.ended()
    world.until(lambda: world.heard(0, "finished"))
    assert world.heard(0, "verdict")[0].first_failure.error == "node host1 lost"


def test_an_agent_reports_in_its_dead_shims_place(world: World, tmp_path: Path) -> None:
    peer = world.peers[0]
    peer.close()
    world.links.remove(peer)
    world.turn(5.0)
    assert not world.heard(0, "stop")
    assert world.coordinator.endpoint is not None
    (tmp_path / "spec.json").write_text(json.dumps(raw_spec(3, 1)))
    keep_endpoint(str(tmp_path), world.coordinator.endpoint)
    began = world.now
    thread = tell_death_in_background(str(tmp_path), "the out-of-memory killer took it")
    while thread.is_alive():
        world.settle()
    assert world.heard(0, "stop") == [("failure", FAILURE_GRACE_SECONDS)]
    assert world.now == began
    world.coordinator.ended()
    world.peers[1].ended()
    world.turn(1.0)
    (verdict,) = world.heard(0, "verdict")
    assert verdict.first_failure.host == "host1"
    assert "the out-of-memory killer took it" in verdict.first_failure.error


def test_a_last_word_for_another_run_is_not_taken(world: World, tmp_path: Path) -> None:
    assert world.coordinator.endpoint is not None
    (tmp_path / "spec.json").write_text(json.dumps(raw_spec(3, 1, secret="cd" * 32)))
    keep_endpoint(str(tmp_path), world.coordinator.endpoint)
    told: list[bool] = []
    quick = LinkTimes(retry=0.0)
    thread = threading.Thread(target=lambda: told.append(tell_death(str(tmp_path), "", quick)))
    thread.start()
    while thread.is_alive():
        world.settle()
    assert told == [False]
    assert not world.heard(0, "stop")


def test_a_last_word_without_an_endpoint_is_not_told(tmp_path: Path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(raw_spec(2, 1)))
    assert not tell_death(str(tmp_path), "")


def test_a_rank_that_failed_has_the_blame_also_when_its_node_is_lost(world: World) -> None:
    world.peers[0].failed(failure(1, int(world.now * SECOND), "ValueError: boom"))
    world.settle()
    world.relay.refuses = True
    world.relay.cut()
    world.coordinator.ended()
    waited = world.until(lambda: world.heard(0, "verdict"))
    assert waited < 5.0 + TIMES.settle + 1.0
    assert world.heard(0, "verdict")[0].first_failure.error == "ValueError: boom"
    told = world.heard(0, "note")[-1].summary.partition("host2 has not answered host0 for ")[2]
    assert float(told.split()[0]) <= waited


def test_a_linked_node_that_cannot_end_does_not_hold_up_the_verdict(world: World) -> None:
    world.coordinator.failed(failure(0, int(world.now * SECOND)))
    world.coordinator.ended()
    world.peers[1].ended()
    waited = world.until(lambda: world.heard(2, "finished"))
    assert 5.0 < waited < 5.0 + TIMES.settle + 1.0
    assert not world.heard(1, "finished")
    world.peers[0].ended()
    assert world.heard(1, "finished")


# Runs that outlive a node


def gone(world: World, node: int, why: str = "its shim is gone") -> None:
    """Have a node's agent say that its shim is gone."""
    world.links[node].close()
    world.coordinator._heard(node, {"op": SHIM_GONE, "why": why})
    world.settle()


def test_a_run_goes_on_without_a_node_while_enough_are_left(make_world: MakeWorld) -> None:
    world = make_world(3, min_nodes=2)
    gone(world, 1)
    assert [world.heard(node, "node_lost") for node in (0, 2)] == [[1], [1]]
    (note,) = world.heard(0, "note")
    assert (note.check, note.severity) == ("run.node_lost", "warn")
    assert note.host == "host1"
    assert note.summary.endswith("the run goes on with 2 of 3 nodes")
    world.turn(60.0)
    assert not world.heard(0, "stop") + world.heard(2, "stop")
    world.coordinator.ended()
    world.peers[1].ended()
    world.until(lambda: world.heard(0, "finished") and world.heard(2, "finished"))
    for node in (0, 2):
        assert world.heard(node, "verdict") == [RunVerdict("succeeded", 0, None)]


def test_too_few_nodes_left_end_a_run_by_the_last_loss(make_world: MakeWorld) -> None:
    world = make_world(4, min_nodes=3)
    gone(world, 1)
    world.turn(5.0)
    assert not world.heard(3, "stop")
    gone(world, 2)
    assert world.heard(0, "stop") == world.heard(3, "stop") == [("failure", 5.0)]
    assert [note.severity for note in world.heard(0, "note")] == ["warn", "fail"]
    world.coordinator.ended()
    world.peers[2].ended()
    world.until(lambda: world.heard(3, "verdict"))
    assert world.heard(3, "verdict")[0].first_failure.error == (
        "node host2 lost: its shim is gone"
    )


def test_a_node_cut_off_ends_its_ranks_and_does_not_judge(make_world: MakeWorld) -> None:
    world = make_world(2, min_nodes=1)
    world.relay.refuses = True
    world.relay.cut()
    world.until(lambda: world.heard(0, "node_lost") and world.heard(1, "stop"))
    note = world.heard(1, "note")[-1]
    assert (note.check, note.severity) == ("run.cut_off", "warn")
    world.relay.refuses = False
    world.peers[0].ended()
    world.turn(5.0)
    (verdict,) = world.heard(1, "verdict")
    assert (verdict.state, verdict.exit_code) == ("lost", 1)
    assert not world.heard(0, "stop")
    world.coordinator.ended()
    assert world.heard(0, "verdict") == [RunVerdict("succeeded", 0, None)]


def test_who_loses_node_zero_ends_whatever_is_left(make_world: MakeWorld) -> None:
    world = make_world(3, min_nodes=1)
    world.relay.silent = True
    world.until(lambda: world.heard(1, "stop") and world.heard(2, "stop"))
    for peer in world.peers:
        peer.ended()
    assert [world.heard(node, "verdict")[0].exit_code for node in (1, 2)] == [1, 1]


# Strangers


def greeted(world: World) -> tuple[socket.socket, dict[str, Any]]:
    assert world.coordinator.endpoint is not None
    sock = socket.create_connection(world.coordinator.endpoint)
    world.settle()
    return sock, json.loads(sock.recv(4096))


def closed(world: World, sock: socket.socket) -> bool:
    world.settle()
    sock.setblocking(False)
    try:
        return sock.recv(4096) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "line",
    [
        b"GET / HTTP/1.1",
        b"[1]",
        b'{"node": 1, "nonce": "00", "proof": ""}',
        b'{"node": true, "nonce": "' + b"0" * 64 + b'", "proof": ""}',
        b'{"node": 1, "nonce": "' + b"0" * 64 + b'", "proof": "' + b"0" * 64 + b'"}',
        b'{"node": 1, "nonce": "' + b"0" * 64 + b'", "proof": "\xc3\xa4"}',
        b"x" * (MAX_HELLO_BYTES + 1),
    ],
)
def test_who_does_not_know_the_secret_is_dropped(world: World, line: bytes) -> None:
    sock, _ = greeted(world)
    with sock:
        sock.sendall(line + b"\n")
        assert closed(world, sock)
    assert all(not world.heard(node, "stop") for node in range(3))


def test_who_says_nothing_is_dropped_after_the_handshakes_time(world: World) -> None:
    sock, _ = greeted(world)
    with sock:
        assert not closed(world, sock)
        world.turn(TIMES.handshake + 0.5)
        assert closed(world, sock)


def test_strangers_are_bounded_and_do_not_keep_a_node_out(make_world: MakeWorld) -> None:
    world = make_world(2, begin=False)
    crowd = [greeted(world)[0] for _ in range(MAX_STRANGERS + 5)]
    assert sum(closed(world, sock) for sock in crowd) == 5
    world.begin()
    world.turn(1.0)
    world.coordinator.stopping(StopRequest(0, 1, "user"), 1.0)
    world.settle()
    assert world.heard(1, "stop") == [("user", 1.0)]
    for sock in crowd:
        sock.close()


@pytest.mark.parametrize("other", [{"secret": "cd" * 32}, {"run": "r2"}])
def test_a_shim_of_another_run_is_not_let_in(make_world: MakeWorld, other: dict[str, str]) -> None:
    world = make_world(2, begin=False)
    stranger = Peer(world.loop, spec(2, 1, **other), world.relay.endpoint, world._events(1), TIMES)
    world.coordinator.begin()
    stranger.begin()
    world.turn(2.0)
    world.coordinator.stopping(StopRequest(0, 1, "user"), 1.0)
    world.turn(1.0)
    assert world.heard(1, "stop") == []
    stranger.close()


def test_a_coordinator_without_the_secret_is_not_believed(make_world: MakeWorld) -> None:
    world = make_world(2, begin=False)
    false = Coordinator(world.loop, spec(2, 0, secret="cd" * 32), world._events(0), TIMES)
    assert false.endpoint is not None
    peer = Peer(world.loop, spec(2, 1), false.endpoint, world._events(1), TIMES)
    peer.begin()
    world.turn(3.0)
    false.stopping(StopRequest(0, 1, "user"), 1.0)
    world.turn(1.0)
    assert world.heard(1, "stop") == []
    peer.close()
    false.close()


# Runs that an engine steers


def test_a_command_reaches_the_one_node_and_its_end_comes_back(make_world: MakeWorld) -> None:
    made = make_world(3, begin=False)
    made.coordinator.command(2, "77", "orted")  # before that node has connected
    made.begin()
    made.turn(1)
    assert [made.heard(node, "command") for node in range(3)] == [[], [], [("77", "orted")]]
    made.peers[1].command_ended("77", 5)
    made.turn(1)
    assert made.heard(0, "command_ended") == [(2, "77", 5)]


def test_an_outlived_failure_ends_a_run_only_when_given_up(make_world: MakeWorld) -> None:
    made = make_world(3, min_nodes=1)
    died = failure(2, 5 * SECOND)._replace(exit_code=137)
    made.peers[1].outlived(died)
    made.turn(1)
    assert made.heard(0, "outlived") == [died]
    assert not any(made.heard(node, "stop") for node in range(3))
    made.coordinator.give_up([died])
    made.turn(1)
    assert [made.heard(node, "stop") for node in range(3)] == [[("failure", 5.0)]] * 3
    for link in made.links:
        link.ended()
    made.turn(1)
    (verdict,) = made.heard(1, "verdict")
    assert (verdict.state, verdict.exit_code) == ("failed", 137)
    assert verdict.first_failure.host == "host2"


def test_a_run_given_up_without_a_failure_was_lost(make_world: MakeWorld) -> None:
    made = make_world(3, min_nodes=1)
    gone(made, 2)
    assert made.heard(0, "node_lost") == [2]
    made.coordinator.give_up([])
    made.turn(1)
    made.coordinator.ended()
    made.peers[0].ended()
    made.turn(1)
    (verdict,) = made.heard(0, "verdict")
    assert verdict.state == "failed"
    assert verdict.first_failure.error == "node host2 lost: its shim is gone"


def test_what_is_left_is_killed_once_no_node_has_a_rank(make_world: MakeWorld) -> None:
    made = make_world(3)
    made.coordinator.failed(failure(0, 5 * SECOND))
    made.peers[0].idle()
    made.coordinator.idle(0)
    made.turn(1)
    assert made.heard(1, "stop") == [("failure", 5.0)]
    made.peers[1].idle()
    made.turn(1)
    assert [made.heard(node, "stop")[-1] for node in range(3)] == [("failure", 0.0)] * 3


# Nodes that lie


def test_a_node_has_no_failures_of_ranks_that_the_plan_has_elsewhere(world: World) -> None:
    world.peers[0].failed(failure(1, int(world.now * SECOND))._replace(rank=0))
    end(world)
    first = world.heard(0, "verdict")[0].first_failure
    assert (first.host, first.rank) == ("host1", 2)


def test_whose_a_connection_is_says_only_the_node_that_it_comes_from(world: World) -> None:
    told: list[bool] = []
    nobodys = ("127.0.0.1", 1)  # no such connection is here: its node is asked
    whose = world.coordinator.whose
    whose.met(2, "10.9.9.9")
    whose.ask(Ends(("10.9.9.9", 1), nobodys), told.append)
    for node, answer in ((1, {"id": 1, "ours": True}), (2, {"id": 7, "ours": True})):
        whose.heard(node, answer)
    assert told == []
    world.settle()
    assert told == [False]
    whose.heard(2, {"id": 1, "ours": True})
    assert told == [False]
    with pytest.raises(LinkError):
        whose.heard(2, {"id": [], "ours": True})


@pytest.mark.parametrize("maker", [None, 5, ["10.0.0.1"], ["not an address", 1], ["10.0.0.1", -1]])
def test_a_question_about_no_connection_is_refused(maker: object) -> None:
    with pytest.raises(LinkError):
        answer_of({"op": "whose", "id": 1, "maker": maker, "taker": ["10.0.0.2", 2]})
