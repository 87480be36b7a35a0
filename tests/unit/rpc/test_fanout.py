"""Every node is accounted for, and none waits for another; stages that go on at once are one line."""

import threading
from collections.abc import Iterator

import pytest

from distconsole.errors import OUT_OF_THREADS, ConnectError, StorageError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Failed, Ok
from distconsole.rpc import fanout
from distconsole.rpc.fanout import fan_out, iter_outcomes, run_at_once

HOSTS = [Host(HostName(f"n{number}")) for number in range(100)]


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_outcomes_keep_the_order_of_the_hosts() -> None:
    def work(host: Host) -> str:
        if host.name.endswith("7"):
            raise StorageError("full")
        return host.name.upper()

    outcomes = fan_out(HOSTS, work)
    assert [outcome.host for outcome in outcomes] == [host.name for host in HOSTS]
    failed = [outcome for outcome in outcomes if isinstance(outcome, Failed)]
    assert len(failed) == 10
    assert outcomes[0].value == "N0"
    assert fan_out([], work) == []


def test_only_some_begin_at_once(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "YOUNG_SECONDS", 60.0)
    running, most, lock = [0], [0], threading.Lock()

    def work(host: Host) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        gate.wait(0.01)
        with lock:
            running[0] -= 1

    fan_out(HOSTS, work)
    assert 1 < most[0] <= fanout.CONNECTORS


def test_hosts_that_are_linked_wait_for_no_login(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fanout, "YOUNG_SECONDS", 60.0)
    begun = threading.Semaphore(0)

    def work(host: Host) -> None:
        begun.release()
        gate.wait(30)

    at = threading.Thread(target=lambda: list(iter_outcomes(HOSTS, work, linked=lambda _: True)))
    at.start()
    assert all(begun.acquire(timeout=10) for _ in HOSTS)  # all at once
    gate.set()
    at.join()


def test_dead_hosts_delay_no_other(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "YOUNG_SECONDS", 0.05)

    def work(host: Host) -> None:
        if int(host.name[1:]) < 64:
            gate.wait(30)

    living = 0
    for outcome in iter_outcomes(HOSTS, work):
        assert int(outcome.host[1:]) >= 64
        living += 1
        if living == 36:
            break
    assert living == 36


def test_a_deadline_is_each_node_s_own(gate: threading.Event) -> None:
    def work(host: Host) -> str:
        if host.name == "n1":
            gate.wait(30)
        return host.name

    first, second, third = fan_out(HOSTS[:3], work, seconds=0.2)
    assert isinstance(first, Ok)
    assert isinstance(third, Ok)
    assert isinstance(second.error, ConnectError)


def test_a_bug_in_the_work_is_raised_here() -> None:
    def work(host: Host) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fan_out(HOSTS[:2], work)


def test_a_host_without_a_thread_here_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scarce(threading.Thread):
        def start(self) -> None:
            if self.name == "work:n1":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(fanout.threading, "Thread", Scarce)
    outcomes = fan_out(HOSTS[:3], lambda _: "done")
    assert [type(outcome) for outcome in outcomes] == [Ok, Failed, Ok]
    failed = outcomes[1]
    assert failed.error.message == f"{OUT_OF_THREADS}, and n1 needs one"
    assert "ulimit -u" in failed.error.hint


def waits(own: threading.Event, others: threading.Event, name: str) -> Iterator[str]:
    own.set()
    assert others.wait(10)
    yield name


def test_each_goes_on_while_the_other_waits_for_it() -> None:
    first, second = threading.Event(), threading.Event()
    works = [("a", waits(first, second, "host1")), ("b", waits(second, first, "host2"))]
    told = list(run_at_once(works, pytest.fail))
    assert sorted(told) == [("a", ""), ("a", "host1"), ("b", ""), ("b", "host2")]


def test_what_one_raises_is_raised_after_the_others_were_told_to_give_up() -> None:
    given_up = threading.Event()
    cleared: list[str] = []

    def fails() -> Iterator[str]:
        yield "host1"
        raise ValueError("no")

    def clears() -> Iterator[str]:
        assert given_up.wait(10)
        cleared.append("b")
        yield "host2"

    with pytest.raises(ValueError, match="no"):
        list(run_at_once([("a", fails()), ("b", clears())], given_up.set))
    assert cleared == ["b"]


def test_a_consumer_that_goes_away_ends_them() -> None:
    given_up = threading.Event()

    def endless() -> Iterator[str]:
        yield "host1"
        assert given_up.wait(10)

    stages = run_at_once([("a", endless())], given_up.set)
    assert next(stages) == ("a", "host1")
    stages.close()
    assert given_up.is_set()
