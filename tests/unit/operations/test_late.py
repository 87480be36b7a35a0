"""A run that ended while a host was away: what that host has to tell is fetched once it is back."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import msgspec
import pytest

from distconsole.errors import LinkLostError, RunNotFoundError
from distconsole.model import requests as ask
from distconsole.model.events import Event, Narration, RunShown
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, LogLine, RunEnded, RunFinding
from distconsole.operations.attach import ask_late, attach, follow_run
from distconsole.operations.control import Control
from distconsole.operations.stored.history import show
from distconsole.operations.stored.logs import logs
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from fakes.journals import keep, stored_entry
from fakes.streams import PlayedJournal

RUN = RunId("late-1")
NOW = time.time()


def entry(seq: int, kind: str, **fields: Any) -> dict[str, Any]:
    return {"seq": seq, "t": NOW + seq / 100, "kind": kind, **fields}


def line(seq: int, text: str) -> dict[str, Any]:
    return entry(seq, "log", rank=1, stream="out", offset=0, text=text)


VERDICT = {"state": "failed", "exit_code": 3, "first_failure": None}
END = {"state": "failed", "exit_code": 3, "seconds": 4.0}
NODE1 = [entry(1, "verdict", **VERDICT), entry(2, "end", **END)]
NODE2 = [line(1, "early\n"), line(2, "last words\n"), entry(3, "end", **END)]


class BackAgain:
    """A session to a host that is back, or still away; notes from where its journal was asked for."""

    at_hand = True

    def __init__(self, *, away: bool = False, told: list[dict[str, Any]] = NODE2) -> None:
        self.away = away
        self.told = told
        self.asked: list[tuple[str, int]] = []
        hosts = {name: SimpleNamespace(name=name) for name in ("node1", "node2")}
        self.cluster = SimpleNamespace(hosts=tuple(hosts.values()), host=hosts.get)

    @contextmanager
    def __call__(self, _where: ask.Where) -> Iterator["BackAgain"]:
        yield self

    def link(self, host: HostName) -> Any:
        if self.away:
            raise LinkLostError(f"{host}: nothing answers")

        def stream(op: str, *, run: str, after: int, journal: str) -> Any:
            assert (op, run) == ("follow", RUN)
            self.asked.append((host, after))
            rest = [each for each in self.told if each["seq"] > after]
            return PlayedJournal([{"entries": rest, "journal": "B"}])

        return SimpleNamespace(stream=stream, clock_offset=lambda _: SimpleNamespace(seconds=0.0))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """A run that ended while node2 was away, which had told one line."""
    return kept(
        tmp_path, RunEnded(t=NOW, run=RUN, state=EndState.FAILED, exit_code=3, seconds=4.0)
    )


def kept(folder: Path, end: RunEnded, node1: list[dict[str, Any]] = NODE1) -> RunStore:
    """Return a store with a run that ended so, of which node2 had told one line."""
    store = RunStore(folder)
    record = RunRecord(RUN, started=NOW, hosts=("node1", "node2"), end=msgspec.json.encode(end))
    with store.create(record) as run_file:
        told = [("node1", each) for each in node1] + [("node2", NODE2[0])]
        keep(run_file, [stored_entry(host, each["seq"], each["t"], **each) for host, each in told])
    return store


def lines(events: list[Event]) -> list[str]:
    return [e.line for e in events if isinstance(e, LogLine) and not e.transient]


def attached(store: RunStore, sessions: BackAgain) -> list[Event]:
    return list(attach(ask.Attach(RUN), sessions, Control(), store))


def logged(store: RunStore, sessions: BackAgain) -> list[Event]:
    return list(logs(ask.Logs(RUN), sessions, Control(), store))


def reported(store: RunStore, sessions: BackAgain) -> list[Event]:
    return list(follow_run(RUN, ask.Where(), sessions, store))


def shown(store: RunStore, sessions: BackAgain) -> list[Event]:
    return list(show(ask.Show(RUN), sessions, store))


@pytest.mark.parametrize("verb", [attached, logged, shown])
def test_the_last_lines_of_a_host_that_is_back_are_fetched_and_asked_for_once(
    store: RunStore, verb: Any
) -> None:
    back = BackAgain()
    events = verb(store, back)
    assert back.asked == [("node2", 1)]
    assert not [event for event in events if isinstance(event, Narration)]
    if verb is shown:
        assert isinstance(events[-1], RunShown)
        events = attached(store, back)
    assert lines(events) == ["early", "last words"]
    if verb is attached:
        assert isinstance(events[-1], RunEnded)
        assert (events[-1].state, events[-1].exit_code) == (EndState.FAILED, 3)
    attached(store, back)
    assert back.asked == [("node2", 1)]


def test_of_a_host_that_is_still_away_it_is_said_and_what_is_stored_is_shown(
    store: RunStore,
) -> None:
    events = attached(store, BackAgain(away=True))
    (said,) = [event for event in events if isinstance(event, Narration)]
    assert said.text == (
        "node2 has not told the end of this run: nothing answers; what is stored here is shown"
    )
    assert lines(events) == ["early"]
    assert isinstance(events[-1], RunEnded)
    assert events[-1].seconds == 4.0


def test_hosts_that_are_away_for_one_reason_are_said_in_one_line(store: RunStore) -> None:
    with store.open(RUN) as run_file:
        record = run_file.record()

    def ended(_where: ask.Where) -> NoReturn:
        raise RunNotFoundError("the demo has ended")

    wider = replace(record, hosts=(*record.hosts, HostName("node3")))
    (said,) = ask_late(wider, ask.Where(), ended, store)
    assert said.text.startswith("node2, node3 have not told the end of this run: the demo has")


def test_what_a_lost_host_that_is_back_tells_of_after_the_end_is_shown_or_counted(
    tmp_path: Path,
) -> None:
    said = {"check": "run.node_lost", "severity": "warn", "summary": "node2 lost", "hint": ""}
    well = {"state": "succeeded", "exit_code": 0}
    node1 = [
        entry(1, "note", host="node2", **said),
        entry(2, "verdict", first_failure=None, **well),
        entry(3, "end", seconds=1.0, **well),
    ]
    went_on = [
        entry(1999, "window", rank=1, step=6, steps=6),
        entry(2000, "window", rank=1, step=7, steps=0, points={"loss": [[7, 0.5, None]]}),
        line(2001, "late words\n"),
        line(2002, "and half a line"),
        entry(2003, "end", state="lost", exit_code=1, seconds=60.0),
    ]
    node2 = [NODE2[0], *({**each, "seq": seq} for seq, each in enumerate(went_on, 2))]
    end = RunEnded(t=NOW, run=RUN, state=EndState.SUCCEEDED, exit_code=0, seconds=1.0)
    store = kept(tmp_path, end, node1)
    for verb in (logged, attached, reported):
        events = verb(store, BackAgain(told=node2))
        assert lines(events) == ["early", "late words", "and half a line"]
        if verb is not logged:
            ended = events[-1]
            assert isinstance(ended, RunEnded)
            assert (ended.state, ended.exit_code, ended.seconds) == (EndState.SUCCEEDED, 0, 1.0)
            (passed_by,) = (
                e for e in events if isinstance(e, RunFinding) and e.severity == "info"
            )
            assert passed_by.check == "run.node_lost"
            assert "7 steps of node2" in passed_by.summary
