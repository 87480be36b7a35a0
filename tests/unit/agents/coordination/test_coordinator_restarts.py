"""When the coordinator has the ranks started anew, and what of the attempt before still counts."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from distconsole_agent.coordination.blame import StopRequest
from distconsole_agent.coordination.restarts import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    QUICK_SECONDS,
    Restart,
    Restarts,
    last_checkpoint,
)
from fakes.links import SECOND, TIMES, World, failure


@pytest.fixture
def world() -> Iterator[World]:
    world = World(3, max_restarts=2)
    world.begin()
    world.turn(1.0)
    yield world
    world.close()


def fail(world: World, *, error: str = "ValueError: boom", **more: Any) -> None:
    """Have a rank of node 1 fail, and every node end."""
    told = failure(1, int(world.now * SECOND), error)._replace(**more)
    world.peers[0].failed(told)
    world.settle()
    end(world)


def end(world: World) -> None:
    for link in world.links:
        link.ended()
    for _ in range(4):  # the node that failed measures its clock once more
        world.settle()


def verdict(world: World) -> Any:
    world.until(lambda: all(world.heard(node, "finished") for node in range(3)))
    verdicts = [world.heard(node, "verdict") for node in range(3)]
    assert verdicts[0] == verdicts[1] == verdicts[2]
    (found,) = verdicts[0]
    return found


def notes(world: World) -> list[str]:
    return [note.summary for note in world.heard(0, "note")]


def test_every_node_starts_anew_after_a_failure_and_hears_the_same(world: World) -> None:
    fail(world)
    assert not world.heard(1, "again")
    (told,) = world.heard(0, "restart")
    assert told[1].first_failure.error == "ValueError: boom"
    waited = world.until(lambda: world.heard(2, "again"))
    assert abs(waited - FIRST_PAUSE_SECONDS) < 0.2
    expected = Restart(1, 2, 4001, "/ckpt/last.pt")
    assert [world.heard(node, "again") for node in range(3)] == [[expected]] * 3
    assert not world.heard(0, "verdict")
    end(world)
    assert verdict(world).state == "succeeded"


def test_an_attempt_that_lived_is_followed_by_the_next_without_a_pause(world: World) -> None:
    world.turn(QUICK_SECONDS)
    fail(world)
    assert world.until(lambda: world.heard(2, "again")) < 0.2


def test_the_last_attempts_failure_is_the_verdict(world: World) -> None:
    for number in (1, 2):
        fail(world, error=f"ValueError: boom {number}")
        world.until(lambda number=number: len(world.heard(2, "again")) == number)
    fail(world, error="KeyError: last", exit_code=7)
    found = verdict(world)
    assert (found.exit_code, found.first_failure.error) == (7, "KeyError: last")
    assert notes(world) == ["not restarted: all 2 restarts are used up"]


def test_a_late_report_of_the_attempt_before_is_not_of_this_one(world: World) -> None:
    world.relay.refuses = True
    world.relay.cut()
    world.coordinator.failed(failure(0, int(world.now * SECOND)))
    world.coordinator.ended()
    for peer in world.peers:
        peer.ended()
    world.relay.refuses = False
    world.until(lambda: world.heard(0, "restart"))
    # Node 1 cannot hear of the restart yet, and reports once more.
    world.relay.refuses = True
    world.relay.cut()
    world.until(lambda: world.heard(0, "again"))
    world.peers[0].failed(failure(1, int(world.now * SECOND), "KeyError: late"))
    world.relay.refuses = False
    world.until(lambda: world.heard(1, "again") and world.heard(2, "again"))
    world.turn(3.0)
    assert not world.heard(0, "stop")
    end(world)
    assert verdict(world).state == "succeeded"


def test_a_settling_time_of_the_attempt_before_does_not_end_this_one(world: World) -> None:
    fail(world)
    world.until(lambda: world.heard(2, "again"))
    world.turn(5.0 + TIMES.settle + 2.0)
    assert not world.heard(0, "verdict")
    assert not world.heard(0, "note")


def test_a_stop_in_the_pause_ends_the_run_at_once(world: World) -> None:
    fail(world)
    world.peers[1].stopping(StopRequest(2, int(world.now * SECOND), "user"), 10.0)
    world.settle()
    assert world.heard(0, "verdict")[0].exit_code == 1
    assert notes(world) == ["not restarted: the run was asked to stop"]
    world.turn(FIRST_PAUSE_SECONDS + 1.0)
    assert not world.heard(0, "again")


def test_nodes_that_are_lost_in_a_later_attempt_end_the_run(world: World) -> None:
    fail(world)
    world.until(lambda: world.heard(2, "again"))
    world.relay.silent = True
    world.until(lambda: world.heard(0, "stop")[1:])
    world.coordinator.ended()
    world.until(lambda: world.heard(0, "verdict"))
    assert world.heard(0, "verdict")[0].first_failure.error == "node host1 lost"
    assert notes(world)[-1] == "not restarted: without host1, host2 its ranks have no place"


def test_what_can_only_fail_again_is_not_started_anew(world: World) -> None:
    fail(world, final="Slurm has ended the step")
    assert verdict(world).state == "failed"
    assert notes(world) == ["not restarted: Slurm has ended the step"]


def test_a_node_that_does_not_end_is_said_to_hinder_the_restart(world: World) -> None:
    world.coordinator.failed(failure(0, int(world.now * SECOND)))
    world.coordinator.ended()
    world.peers[1].ended()
    world.until(lambda: world.heard(0, "verdict"))
    assert notes(world) == ["not restarted: what runs on host1 does not end"]


def test_without_a_port_there_is_no_restart_and_the_verdict_stands(world: World) -> None:
    world.no_port = OSError(98, "Address already in use")
    fail(world)
    assert verdict(world).first_failure.error == "ValueError: boom"
    (told,) = notes(world)
    assert told.endswith("Address already in use")


def test_pauses_grow_while_attempts_fail_at_once_and_are_bounded() -> None:
    now = 0.0
    restarts = Restarts(1000, lambda: now)
    pauses = []
    for _ in range(12):
        restarts.begin()
        now += 1.0
        restarts.failed()
        now += 60.0  # the others take their time to end
        pauses.append(restarts.pause_seconds())
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    restarts.begin()
    now += QUICK_SECONDS
    restarts.failed()
    assert restarts.pause_seconds() == 0.0
    restarts.begin()
    assert restarts.pause_seconds() == FIRST_PAUSE_SECONDS


def test_only_an_absolute_path_that_is_there_is_a_checkpoint(tmp_path: Any) -> None:
    there = tmp_path / "step-1.pt"
    there.touch()
    told = tmp_path / "checkpoint"
    assert last_checkpoint(str(tmp_path)) is None
    for text, found in (
        (f"{there}\n", str(there)),
        (f"{there}\nmore", str(there)),
        ("step-1.pt", None),
        (f"{there}.gone", None),
        ("/tmp/\x1b[0m", None),
        ("", None),
    ):
        told.write_text(text)
        assert last_checkpoint(str(tmp_path)) == found
    told.unlink()
    os.mkfifo(told)
    assert last_checkpoint(str(tmp_path)) is None, "nobody writes into it, and nobody waits"


def test_hosts_that_lose_each_other_during_a_stop_restart_together(world: World) -> None:
    world.coordinator.failed(failure(0, int(world.now * SECOND)))
    world.relay.silent = True
    for link in world.links:
        link.ended()
    world.turn(TIMES.give_up - 10.0)  # longer than a stop waits for who is not there
    assert not world.heard(0, "verdict")
    world.relay.silent = False
    world.until(lambda: all(world.heard(node, "again") for node in range(3)))
    assert not [note for note in notes(world) if note.startswith("not restarted")]
