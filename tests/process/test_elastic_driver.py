"""The program in which Horovod's elastic driver runs, real Horovod in it; the test speaks for the shim."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.engines.elastic import DRIVER_SOCKET
from distconsole_agent.system import unix
from fakes.shims import REPOSITORY

pytestmark = pytest.mark.horovod

SECONDS = 20.0


class Driven:
    """A driver that was told of these hosts, and what it says."""

    def __init__(self, folder: Path, hosts: dict[str, int], min_hosts: int = 1) -> None:
        self.hosts, self.min_hosts = dict(hosts), min_hosts
        with unix.listen(str(folder / DRIVER_SOCKET), 1) as listener:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "distconsole_agent", "elastic-driver"],
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY / "agents"),
                    "DISTCONSOLE_RUN_DIR": str(folder),
                },
            )
            listener.settimeout(SECONDS)
            self._socket: socket.socket = listener.accept()[0]
        self._socket.settimeout(SECONDS)
        self._heard = self._socket.makefile("rb")
        self.tell_hosts()

    def tell(self, **message: Any) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def tell_hosts(self) -> None:
        self.tell(hosts=list(self.hosts.items()), min_hosts=self.min_hosts)

    def lose(self, host: str) -> None:
        """The host is lost, and its ranks are."""
        slots = self.hosts.pop(host)
        self.tell_hosts()
        for slot in range(slots):
            self.tell(ended=[host, slot, 1])

    def next(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._heard.readline())
        return message

    def next_of(self, count: int, kind: str) -> list[dict[str, Any]]:
        """Return the next messages, all of this kind, in an order that does not depend on threads."""
        found = [self.next() for _ in range(count)]
        assert all(kind in each for each in found), found
        return sorted(found, key=lambda each: json.dumps(each[kind]))

    def started(self) -> dict[tuple[str, int], dict[str, str]]:
        """Return where ranks were started, and what was handed to them."""
        assert self.next() == {"round": list(self.hosts), "size": sum(self.hosts.values())}
        starts = self.next_of(sum(self.hosts.values()), "start")
        return {(host, slot): each["env"] for each in starts for host, slot in [each["start"]]}

    def ask(self, *places: tuple[str, int]) -> None:
        for number, (host, slot) in enumerate(places):
            self.tell(ask=number, host=host, slot=slot)

    def over(self) -> str:
        """Return why the job is over; the program ends with it."""
        why: str = self.next()["over"]
        assert self.process.wait(SECONDS) == 0
        return why

    def close(self) -> None:
        self._heard.close()
        self._socket.close()
        self.process.kill()
        self.process.wait()


Drive = Callable[..., Driven]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    made: list[Driven] = []

    def make(hosts: dict[str, int], min_hosts: int = 1) -> Driven:
        made.append(Driven(tmp_path, hosts, min_hosts))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_ranks_follow_the_order_of_the_hosts_on_hosts_of_different_size(drive: Drive) -> None:
    names = ["9-z", "1-m", "0-q", "7-b", "3-x", "2-c", "4-a", "8-k"]
    driven = drive({name: 1 + index % 2 for index, name in enumerate(names)})
    started = driven.started()
    order = sorted(started, key=lambda place: int(started[place]["HOROVOD_RANK"]))
    assert order == [(name, slot) for i, name in enumerate(names) for slot in range(1 + i % 2)]
    assert started["1-m", 1] == {
        "HOROVOD_HOSTNAME": "1-m",
        "HOROVOD_RANK": "2",
        "HOROVOD_SIZE": "12",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "4",
    }
    for host, slot in order:
        driven.tell(ended=[host, slot, 0])
    assert driven.over() == ""


def test_a_host_whose_rank_fails_is_given_up_and_the_others_get_new_places(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 2, "2-c": 1})
    driven.started()
    driven.tell(ended=["1-b", 0, 137])
    assert driven.next() == {"outlived": ["1-b", 0]}
    driven.ask(("0-a", 0), ("2-c", 0), ("1-b", 1))
    assert driven.next() == {"end": ["1-b", 1]}  # and it gets no place
    assert driven.next() == {"round": ["0-a", "2-c"], "size": 2}
    answers = {each["answer"]: each["place"] for each in driven.next_of(2, "answer")}
    assert answers == {0: "0,2,0,1,0,2", 1: "1,2,0,1,1,2"}
    driven.tell(ended=["1-b", 1, 143])
    for host in ("0-a", "2-c"):
        driven.tell(ended=[host, 0, 0])
    assert driven.over() == ""


def test_a_lost_host_is_gone_for_good_and_the_first_ranks_move_up(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 1, "2-c": 1})
    driven.started()
    driven.lose("0-a")
    assert driven.next() == {"outlived": ["0-a", 0]}
    driven.ask(("1-b", 0), ("2-c", 0))
    assert driven.next() == {"round": ["1-b", "2-c"], "size": 2}
    answers = driven.next_of(2, "answer")
    assert [each["place"] for each in answers] == ["0,2,0,1,0,2", "1,2,0,1,1,2"]
    driven.lose("1-b")
    assert driven.next() == {"outlived": ["1-b", 0]}
    driven.ask(("2-c", 0))
    assert driven.next() == {"round": ["2-c"], "size": 1}
    assert driven.next() == {"answer": 0, "place": "0,1,0,1,0,1"}
    driven.tell(ended=["2-c", 0, 0])
    assert driven.over() == ""


def test_with_too_few_hosts_it_is_over_at_once(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 1, "2-c": 1}, min_hosts=2)
    driven.started()
    driven.tell(ended=["2-c", 0, 1])
    assert driven.next() == {"outlived": ["2-c", 0]}
    driven.tell(ended=["1-b", 0, 137])  # nobody else has asked for a place yet
    assert driven.over() == "of 2 hosts that it needs 1 are left"


def test_when_every_rank_fails_it_is_over(drive: Drive) -> None:
    driven = drive({"0-a": 2})
    driven.started()
    driven.tell(ended=["0-a", 1, 1])
    assert "0 are left" in driven.over()


def test_a_rank_that_fails_as_others_end_well_fails_the_job(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 1})
    driven.started()
    driven.tell(ended=["0-a", 0, 0])
    driven.tell(ended=["1-b", 0, 1])
    assert driven.next() == {"outlived": ["1-b", 0]}
    assert driven.over() == "ranks failed"


def test_a_rank_that_begins_anew_while_others_end_well_is_not_needed(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 1})
    driven.started()
    driven.ask(("0-a", 0))
    driven.tell(ended=["1-b", 0, 0])
    assert driven.over() == ""


def test_a_rank_that_fails_while_it_waits_for_its_place_has_failed(drive: Drive) -> None:
    driven = drive({"0-a": 1, "1-b": 1, "2-c": 1})
    driven.started()
    driven.ask(("0-a", 0), ("1-b", 0))
    driven.tell(ended=["1-b", 0, 137])
    assert driven.next() == {"outlived": ["1-b", 0]}
    driven.tell(ask=7, host="2-c", slot=0)
    assert driven.next() == {"round": ["0-a", "2-c"], "size": 2}
    answers = driven.next_of(2, "answer")
    assert {each["answer"] for each in answers} == {0, 7}


def test_it_ends_with_the_shim(drive: Drive) -> None:
    driven = drive({"0-a": 1})
    driven.started()
    driven.close()
    assert driven.process.returncode is not None
