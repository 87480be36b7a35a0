"""Journals followed over links that break; the links are faked, the store is real."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import AgentError, LinkLostError, NodeError, RequestError
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import (
    EndState,
    LinkChanged,
    LogLine,
    RankChanged,
    RunEnded,
    RunEvents,
    RunFinding,
    Window,
)
from distconsole.rpc.frames import WindowEntry
from distconsole.rpc.wire import check_item
from distconsole.runs.following.feed import HOLD_SECONDS, Delivered, HostReader, JournalFeed
from distconsole.runs.following.follow import follow
from distconsole.runs.following.waiting_lines import WaitingLines
from distconsole.runs.reduce import RunReducer
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import replay
from fakes.disks import refuse_rows
from fakes.shims import wait_until
from fakes.streams import PlayedJournal, Step

Script = Sequence[Step]


def item(*numbers: int, t: float | None = None) -> dict[str, Any]:
    at = time.time() if t is None else t
    return {
        "entries": [
            {
                "kind": "log",
                "seq": n,
                "t": at + n / 1000,
                "rank": 0,
                "stream": "out",
                "offset": 0,
                "text": f"{n}\n",
            }
            for n in numbers
        ]
    }


def end(number: int, t: float | None = None) -> dict[str, Any]:
    at = time.time() if t is None else t
    body = {"state": "succeeded", "exit_code": 0}
    verdict = {"kind": "verdict", "seq": number, "t": at, **body, "first_failure": None}
    last = {"kind": "end", "seq": number + 1, "t": at, **body, "seconds": 1.0}
    return {"entries": [verdict, last]}


class FakeNodes:
    """Gives each connection of a host the next script; notes where each one resumed."""

    def __init__(self, **scripts: list[Script | NodeError]) -> None:
        self._scripts = scripts
        self.resumed: list[tuple[str, int]] = []
        self.known: list[str] = []

    def __call__(self, host: HostName, after: int, journal: str) -> PlayedJournal:
        self.resumed.append((host, after))
        self.known.append(journal)
        script = self._scripts[host].pop(0)
        if isinstance(script, NodeError):
            raise script
        return PlayedJournal(script)


def record(*hosts: str) -> RunRecord:
    return RunRecord(RunId("run-1"), hosts=hosts)


def lines(events: list[RunEvents]) -> list[str]:
    return [event.line for event in events if isinstance(event, LogLine)]


def test_a_run_is_followed_to_its_end_and_kept(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    nodes = FakeNodes(a=[[item(1, 2), item(3), end(4)]])
    events = list(follow(store, record("a"), nodes))
    assert lines(events) == ["1", "2", "3"]
    assert isinstance(events[-1], RunEnded)
    with store.open(RunId("run-1")) as run_file:
        assert run_file.count() == 5
        assert run_file.record().end
        again = list(replay(run_file, RunReducer("run-1", ("a",))))
    assert again == events


def test_a_link_that_is_lost_is_an_event_and_nothing_comes_twice(tmp_path: Path) -> None:
    lost = LinkLostError("cable pulled")
    nodes = FakeNodes(a=[[item(1, 2), lost], lost, [item(2, 3), end(4)]])
    events = list(follow(RunStore(tmp_path), record("a"), nodes))
    assert lines(events) == ["1", "2", "3"]
    assert nodes.resumed == [("a", 0), ("a", 2), ("a", 2)]
    links = [(e.connected, e.reason) for e in events if isinstance(e, LinkChanged)]
    assert links == [(False, "cable pulled"), (True, "")]


def test_what_is_stored_is_not_fetched_again(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    first = follow(
        store, record("a"), FakeNodes(a=[[item(1, 2)]]), until={HostName("a"): JournalPlace(2)}
    )
    assert lines(list(first)) == ["1", "2"]
    nodes = FakeNodes(a=[[item(3), end(4)]])
    assert lines(list(follow(store, record("a"), nodes))) == ["1", "2", "3"]
    assert nodes.resumed == [("a", 2)]


def test_what_another_console_stores_while_history_is_read_is_not_lost(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    whole = [item(1, 2), item(3), end(4)]
    list(follow(store, record("a"), FakeNodes(a=[[item(1, 2)]]), left=lambda: True))
    later = follow(store, record("a"), FakeNodes(a=[[item(3), end(4)]]))
    first = next(later)
    list(follow(store, record("a"), FakeNodes(a=[whole])))
    assert lines([first, *later]) == ["1", "2", "3"]


def test_a_run_that_is_over_and_stored_needs_no_link(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    whole = list(follow(store, record("a"), FakeNodes(a=[[item(1), end(2)]])))
    nodes = FakeNodes(a=[])
    assert list(follow(store, record("a"), nodes)) == whole
    assert nodes.resumed == []


def test_entries_that_are_missing_are_told(tmp_path: Path) -> None:
    nodes = FakeNodes(a=[[item(1), item(4), end(5)]])
    events = list(follow(RunStore(tmp_path), record("a"), nodes))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert (finding.check, finding.seen) == ("run.journal_gap", "entries 2 to 3")


def test_entries_that_cannot_be_read_are_passed_over_and_told_once(tmp_path: Path) -> None:
    damaged = [
        check_item("follow", {"entries": [*item(n)["entries"], {"seq": n + 1, "kind": "?"}]})
        for n in (1, 3)
    ]
    nodes = FakeNodes(a=[[*damaged, item(5), end(6)]])
    events = list(follow(RunStore(tmp_path), record("a"), nodes))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert finding.check == "run.journal_unread"
    assert finding.summary.startswith("1 journal entry of a cannot be read")
    assert lines(events) == ["1", "3", "5"]
    assert nodes.resumed == [("a", 0)]


def test_a_host_whose_end_cannot_be_read_is_not_asked_again(tmp_path: Path) -> None:
    unread = check_item("follow", {"entries": [{"seq": 2, "t": 1.0, "kind": "end", "state": []}]})
    nodes = FakeNodes(a=[[item(1), unread, None]], b=[[item(1), end(2)]])
    events = list(follow(RunStore(tmp_path), record("a", "b"), nodes))
    assert isinstance(events[-1], RunEnded)
    assert sorted(nodes.resumed) == [("a", 0), ("b", 0)]


def test_a_node_whose_disk_is_full_says_so_and_when_it_is_over(tmp_path: Path) -> None:
    full = {"entries": [], "trouble": "No space left on device: /tmp/distconsole-0\x1b[2J"}
    nodes = FakeNodes(a=[[item(1), full, item(2), {"entries": [], "trouble": ""}, end(3)]])
    events = list(follow(RunStore(tmp_path), record("a"), nodes))
    full_disk, over = [event for event in events if isinstance(event, RunFinding)]
    assert (full_disk.check, full_disk.severity, full_disk.hosts) == (
        "run.journal",
        "warn",
        ("a",),
    )
    assert "cannot keep the record of this run: No space left" in full_disk.summary
    assert "\x1b" not in full_disk.summary
    assert over.severity == "info"
    assert lines(events) == ["1", "2"]


FULL = {"entries": [], "trouble": "No space left on device: /tmp/distconsole-0"}


@pytest.mark.parametrize(
    ("limit", "rest"), [("GIVE_UP_SECONDS", [FULL]), ("MUTE_SECONDS", [])], ids=["full", "mute"]
)
def test_a_host_whose_disk_stays_full_or_that_never_tells_its_end_is_not_awaited_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, rest: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(f"distconsole.runs.following.follow.{limit}", 0.0)
    nodes = FakeNodes(a=[[item(1), end(2)]], b=[[item(1), *rest]])
    events = list(follow(RunStore(tmp_path), record("a", "b"), nodes))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].exit_code == 0


def test_a_store_at_its_limit_keeps_all_but_what_ranks_print(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    nodes = FakeNodes(a=[[item(*range(1, 50)), item(*range(50, 60)), end(60)]])
    events = list(follow(store, record("a"), nodes, limit_bytes=1))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert finding.check == "run.store_limit"
    assert len(lines(events)) == 59
    with store.open(RunId("run-1")) as run_file:
        kinds = [stored.body for stored in run_file.entries()]
        assert run_file.record().end
    assert [b'"kind":"verdict"' in body or b'"kind":"end"' in body for body in kinds] == [True] * 2


def test_a_host_that_forgot_the_run_is_not_awaited(tmp_path: Path) -> None:
    gone = RequestError("no such run", code="no_such_run")
    nodes = FakeNodes(a=[[item(1), end(2)]], b=[gone])
    events = list(follow(RunStore(tmp_path), record("a", "b"), nodes))
    assert isinstance(events[-1], RunEnded)
    assert events[-1].exit_code == 0


def test_a_run_that_somebody_else_knows_to_be_over_ends_without_its_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distconsole.runs.following.follow.GIVE_UP_SECONDS", 0.0)
    gone: list[Script | NodeError] = [NodeError("refused")] * 100
    asked: list[bool] = []

    def over() -> bool:
        asked.append(len(asked) > 1)
        return asked[-1]

    events = list(follow(RunStore(tmp_path), record("a"), FakeNodes(a=gone), over=over))
    end = events[-1]
    assert isinstance(end, RunEnded)
    assert (end.state, end.exit_code) == (EndState.FAILED, 1)
    assert asked == [False, False, True]


def test_a_node_that_breaks_the_contract_is_a_lost_link_and_no_crash(tmp_path: Path) -> None:
    broken = {"entries": {}}
    nodes = FakeNodes(a=[[broken], AgentError("still odd"), [item(1), end(2)]])
    events = list(follow(RunStore(tmp_path), record("a"), nodes))
    assert [event.connected for event in events if isinstance(event, LinkChanged)] == [False, True]
    assert lines(events) == ["1"]


def test_history_of_several_hosts_is_merged_by_time(tmp_path: Path) -> None:
    old = time.time() - 3600
    a = [item(1, t=old), item(2, t=old + 20), item(3, t=old + 40), end(4, old + 60)]
    b = [item(11, t=old + 10), item(12, t=old + 30), item(13, t=old + 50), end(14, old + 60)]
    events = list(follow(RunStore(tmp_path), record("a", "b"), FakeNodes(a=[a], b=[b])))
    assert lines(events) == ["1", "11", "2", "12", "3", "13"]


def test_clock_offsets_are_added_to_times() -> None:
    given: list[Delivered] = []
    at = time.time()

    def open_stream(_host: HostName, _after: int, _journal: str) -> PlayedJournal:
        return PlayedJournal([item(1, t=at), end(2, at)], clock_offset=-7.0)

    feed = JournalFeed("r", open_stream, {HostName("a"): JournalPlace()}, keep=given.append)
    assert feed.next(5.0) is not None
    feed.close()
    assert given[0].times[0] == pytest.approx(at - 7.0 + 0.001)


def test_it_is_noted_whether_more_has_come_than_was_yielded(tmp_path: Path) -> None:
    nodes = FakeNodes(a=[[item(1, 2), item(3), item(4)]])
    notes: list[bool] = []
    following = follow(
        RunStore(tmp_path),
        record("a"),
        nodes,
        left=lambda: notes[-1:] == [False],
        note=lambda behind, _: notes.append(behind),
    )
    assert lines(list(following)) == ["1", "2", "3", "4"]
    assert notes[0]
    assert notes[-1] is False
    assert notes.count(False) == 1, "there was more until all was read"


def test_leaving_ends_the_reading(tmp_path: Path) -> None:
    nodes = FakeNodes(a=[[item(1)]])
    left = threading.Event()
    stream = follow(RunStore(tmp_path), record("a"), nodes, left.is_set)
    assert isinstance(next(stream), LogLine)
    left.set()
    assert list(stream) == []


@pytest.mark.parametrize(("table", "when"), [("entries", "seq = 2"), ("meta", "key = 'end'")])
def test_what_a_full_disk_lost_of_a_run_is_said_and_fetched_again(
    tmp_path: Path, table: str, when: str
) -> None:
    store = RunStore(tmp_path)
    store.create(record("a")).close()
    path = tmp_path / "run-1.db"
    refuse_rows(path, table, when)
    events = list(follow(store, record("a"), FakeNodes(a=[[item(1), item(2), end(3)]])))
    assert [event for event in events if isinstance(event, RunEnded)]
    (finding,) = (event for event in events if isinstance(event, RunFinding))
    assert (finding.check, str(path) in finding.seen) == ("run.store", True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TRIGGER refuse")
    with store.open(RunId("run-1")) as run_file:
        assert not run_file.record().end
    list(follow(store, record("a"), FakeNodes(a=[[item(1), item(2), end(3)]])))
    with store.open(RunId("run-1")) as run_file:
        assert (run_file.count(), bool(run_file.record().end)) == (4, True)


def test_hosts_that_do_not_answer_delay_the_leaving_once_and_not_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("distconsole.runs.following.feed.CLOSE_SECONDS", 0.2)
    answered = threading.Event()

    def unanswered(_host: HostName, _after: int, _journal: str) -> PlayedJournal:
        answered.wait(30)
        raise LinkLostError("gone")

    joined: list[float] = []
    join = threading.Thread.join

    def noted(thread: threading.Thread, timeout: float | None = None) -> None:
        joined.append(timeout or 0.0)
        join(thread, timeout)

    feed = JournalFeed(
        "r", unanswered, {HostName(f"n{number}"): JournalPlace() for number in range(20)}
    )
    monkeypatch.setattr(threading.Thread, "join", noted)
    feed.close()
    monkeypatch.undo()
    answered.set()
    feed.close()
    assert joined[0] > 0.1
    assert sum(joined[1:]) < 0.1


def test_a_consumer_that_is_slow_holds_back_the_journal_and_not_memory() -> None:
    taken = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal taken
        while True:
            taken += 1
            yield item(taken)

    journal = PlayedJournal(endless())
    feed = JournalFeed("r", lambda _h, _a, _j: journal, {HostName("a"): JournalPlace()})
    delivered = [feed.next(5.0) for _ in range(50)]
    assert all(isinstance(each, Delivered) for each in delivered)
    assert taken <= 50 + 10
    feed.close()


MOST_BYTES = 8 * 1024 * 1024
BEYOND = 12
"""Items of a flood, which are more than ``MOST_BYTES``."""


@pytest.fixture
def little_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole.runs.following.follow.MOST_BYTES", MOST_BYTES)
    few = partial(WaitingLines, MOST_BYTES)
    monkeypatch.setattr("distconsole.runs.following.follow.WaitingLines", few)


LINE = "0123456789 and some words to fill it, as a flood does to no end\n"
SLICE = LINE * 1024


def flood(number: int) -> dict[str, Any]:
    """16 slices of 64 KiB, as an item of a node has them."""
    played = item(*range(number, number + 16))
    for entry in played["entries"]:
        entry["text"] = SLICE
    return played


def state(number: int, rank: int = 0) -> dict[str, Any]:
    body = {"rank": rank, "local_rank": rank, "pid": 4711, "state": "running"}
    return {"entries": [{"kind": "state", "seq": number, "t": time.time(), **body}]}


def follow_flood(
    folder: Path, items: int, *, whole: bool = False
) -> tuple[list[RunEvents], RunStore]:
    """Follow a run that floods, changes a rank's state, and ends."""
    numbers = range(1, 16 * items, 16)
    after = 16 * items + 1
    told = [*map(flood, numbers), state(after), end(after + 1)]
    stream = PlayedJournal([check_item("follow", each) for each in told])
    store = RunStore(folder)
    return list(follow(store, record("a"), lambda _h, _a, _j: stream, whole=whole)), store


def test_records_pass_lines_that_a_slow_consumer_has_not_taken(tmp_path: Path) -> None:
    events, _ = follow_flood(tmp_path, 12)
    kinds = [type(event) for event in events]
    assert kinds.index(RankChanged) <= SLICE.count(LINE)
    assert kinds[-1] is RunEnded
    assert lines(events) == [LINE[:-1]] * 12 * 16 * 1024


@pytest.mark.usefixtures("little_waits")
def test_lines_that_are_left_out_are_said_and_kept(tmp_path: Path) -> None:
    events, store = follow_flood(tmp_path, BEYOND)
    (finding,) = (event for event in events if isinstance(event, RunFinding))
    assert (finding.check, finding.hosts) == ("run.output_left_out", ("a",))
    assert "distconsole logs run-1 --rank 0" in finding.hint
    told = lines(events)
    (mark,) = (line for line in told if line.startswith("[distconsole: "))
    missing = int(mark.split()[1].replace(",", ""))
    assert missing + len(told) - 1 == BEYOND * 16 * 1024
    with store.open(RunId("run-1")) as run_file:
        kept = list(replay(run_file, RunReducer("run-1", ("a",))))
    assert len(lines(kept)) == BEYOND * 16 * 1024


@pytest.mark.usefixtures("little_waits")
def test_records_pass_the_lines_of_a_long_run_that_is_stored_and_goes_on(tmp_path: Path) -> None:
    store, slices = RunStore(tmp_path), 16 * BEYOND
    floods = [flood(number) for number in range(1, slices, 16)]
    before = FakeNodes(a=[[*floods, state(slices + 1)]])
    until = {HostName("a"): JournalPlace(slices + 1)}
    list(follow(store, record("a"), before, until=until))
    events = list(follow(store, record("a"), FakeNodes(a=[[end(slices + 2)]])))
    assert isinstance(events[0], RankChanged)
    assert isinstance(events[-1], RunEnded)
    (mark,) = (line for line in lines(events) if line.startswith("[distconsole: "))
    missing = int(mark.split()[1].replace(",", ""))
    assert missing + len(lines(events)) - 1 == slices * SLICE.count(LINE)


@pytest.mark.usefixtures("little_waits")
def test_every_line_comes_in_its_place_where_all_are_wanted(tmp_path: Path) -> None:
    events, _ = follow_flood(tmp_path, BEYOND, whole=True)
    kinds = [type(event) for event in events]
    assert kinds == [LogLine] * BEYOND * 16 * 1024 + [RankChanged, RunEnded]


def of_writer(writer: str, played: dict[str, Any]) -> dict[str, Any]:
    return {**played, "journal": writer}


def note(number: int, text: str) -> dict[str, Any]:
    body = {"check": "c", "severity": "info", "summary": text, "hint": ""}
    return {"entries": [{"kind": "note", "seq": number, "t": time.time(), **body}]}


def printed(number: int, offset: int, text: str) -> dict[str, Any]:
    body = {"rank": 0, "stream": "out", "offset": offset, "text": text}
    return {"entries": [{"kind": "log", "seq": number, "t": time.time(), **body}]}


LOST_POWER: Script = [{"entries": [], "after": 2}]
"""A node says that of the entries known here only two are left in its journal."""


def test_who_wrote_the_last_entry_is_said_when_a_journal_is_read_on(tmp_path: Path) -> None:
    store, lost = RunStore(tmp_path), LinkLostError("power")
    nodes = FakeNodes(a=[[of_writer("A", item(1, 2)), lost], [of_writer("A", item(3))]])
    list(follow(store, record("a"), nodes, until={HostName("a"): JournalPlace(3)}))
    later = FakeNodes(a=[[of_writer("B", end(4))]])
    list(follow(store, record("a"), later))
    assert nodes.resumed + later.resumed == [("a", 0), ("a", 2), ("a", 3)]
    assert nodes.known + later.known == ["", "A", "A"]


@pytest.mark.parametrize("while_followed", [True, False])
def test_what_a_node_has_lost_stays_and_what_it_tells_instead_is_kept_behind_it(
    tmp_path: Path, while_followed: bool
) -> None:
    store = RunStore(tmp_path)
    before: Script = [
        of_writer("A", note(1, "one")),
        of_writer("A", printed(2, 0, "x\n")),
        of_writer("A", printed(3, 2, "y\n")),
        of_writer("A", note(4, "four")),
    ]
    after: Script = [
        *LOST_POWER,
        of_writer("B", note(3, "its end was cut off")),
        of_writer("B", printed(4, 2, "y\nz\n")),  # as one slice
        of_writer("B", end(5)),
    ]
    if while_followed:
        nodes = FakeNodes(a=[[*before, LinkLostError("power")], after])
        events = list(follow(store, record("a"), nodes))
    else:
        told = FakeNodes(a=[before])
        list(follow(store, record("a"), told, until={HostName("a"): JournalPlace(4)}))
        nodes = FakeNodes(a=[after])
        events = list(follow(store, record("a"), nodes))
    assert (nodes.resumed[-1], nodes.known[-1]) == (("a", 4), "A")
    (loss,) = [e for e in events if isinstance(e, RunFinding) and e.check == "run.journal_lost"]
    assert (
        loss.summary == "a has lost the last 2 entries of its journal; what it told is kept here"
    )
    assert (loss.seen, loss.severity) == ("entries 3 to 4", "warn")
    assert isinstance(events[-1], RunEnded)
    again = list(replay_of(store))
    assert lines(again) == lines(events) == ["x", "y", "z"]
    said = [e.summary for e in again if isinstance(e, RunFinding)]
    assert said == ["one", "four", "its end was cut off"]


def replay_of(store: RunStore) -> Iterator[RunEvents]:
    with store.open(RunId("run-1")) as run_file:
        yield from replay(run_file, RunReducer("run-1", ("a",)))


def test_what_a_node_tells_once_more_is_known_again_after_the_console_was_away(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    before: Script = [of_writer("A", item(1, 2)), of_writer("A", printed(3, 100, "y\n"))]
    list(follow(store, record("a"), FakeNodes(a=[before]), until={HostName("a"): JournalPlace(3)}))
    # The console leaves while the node tells once more what it had lost.
    cut: Script = [*LOST_POWER, of_writer("B", note(3, "cut")), of_writer("B", note(4, "on"))]
    events = follow(store, record("a"), FakeNodes(a=[cut]), until={HostName("a"): JournalPlace(4)})
    list(events)
    rest: Script = [of_writer("B", printed(5, 100, "y\n")), of_writer("B", end(6))]
    nodes = FakeNodes(a=[rest])
    assert lines(list(follow(store, record("a"), nodes))) == ["1", "2", "y"]
    assert (nodes.resumed, nodes.known) == ([("a", 4)], ["B"])
    assert lines(list(replay_of(store))) == ["1", "2", "y"]


def test_a_journal_of_which_nothing_is_known_is_read_anew_and_nothing_is_told_twice(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    whole = [printed(1, 0, "x\n"), note(2, "two"), printed(3, 2, "y\n")]
    list(
        follow(
            store, record("a"), FakeNodes(a=[list(whole)]), until={HostName("a"): JournalPlace(3)}
        )
    )
    anew = [of_writer("B", each) for each in (*whole, printed(4, 4, "z\n"), end(5))]
    nodes = FakeNodes(a=[[{"entries": [], "after": 0}, *anew]])
    events = list(follow(store, record("a"), nodes))
    (said,) = [e for e in events if isinstance(e, RunFinding) and e.check == "run.journal_lost"]
    assert "is read anew from its beginning" in said.summary
    assert lines(events) == ["x", "y", "z"]
    assert lines(list(replay_of(store))) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("stored", "third", "shown"),
    [
        pytest.param(4, printed(3, 10, "new\n"), ["1", "2", "3", "4", "new"], id="more is stored"),
        pytest.param(3, printed(3, 6, "3\n"), ["1", "2", "3"], id="it has only known entries"),
    ],
)
def test_a_journal_that_another_writer_goes_on_with_is_read_to_its_place(
    tmp_path: Path, stored: int, third: dict[str, Any], shown: list[str]
) -> None:
    store, upto = RunStore(tmp_path), {HostName("a"): JournalPlace(stored)}
    told: Script = [of_writer("A", printed(n, 2 * n, f"{n}\n")) for n in range(1, stored + 1)]
    list(follow(store, record("a"), FakeNodes(a=[told]), until=upto))
    cut: Script = [*LOST_POWER, of_writer("B", third)]
    upto = {HostName("a"): JournalPlace(3, "B")}
    assert lines(list(follow(store, record("a"), FakeNodes(a=[cut]), until=upto))) == shown


def test_what_comes_first_of_many_hosts_is_found_without_asking_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, hosts = time.time() - 3600, [HostName(f"n{number}") for number in range(300)]
    journals = {
        host: PlayedJournal([item(1, t=old + place), item(2, t=old + 1000 + place)])
        for place, host in enumerate(hosts)
    }
    feed = JournalFeed(
        "r", lambda host, _a, _j: journals[host], dict.fromkeys(hosts, JournalPlace())
    )
    wait_until("all are connected", lambda: all(r.stream for r in feed._readers.values()))
    asked = 0

    def connected(_reader: HostReader) -> bool:
        nonlocal asked
        asked += 1
        return True

    noted = property(connected, lambda _reader, _is: None)
    monkeypatch.setattr(HostReader, "connected", noted, raising=False)
    given = [feed.next(5.0) for _ in hosts]
    assert [each.host for each in given if isinstance(each, Delivered)] == hosts
    assert asked < 30 * len(hosts)
    feed.close()


def test_lines_wait_for_the_hosts_whose_history_is_being_read_and_these_are_asked_once() -> None:
    hosts = [HostName(f"n{number}") for number in range(300)]
    feed = JournalFeed(
        "r",
        lambda *_: PlayedJournal([]),
        dict.fromkeys(hosts, JournalPlace()),
        lines=WaitingLines(),
    )
    wait_until("all are connected", lambda: all(r.stream for r in feed._readers.values()))
    feed.next(0.0)
    now = time.monotonic()
    assert now < feed._hold_lines_until(now) <= now + HOLD_SECONDS, "nothing is known of them yet"
    for reader in feed._readers.values():
        reader.read_to, reader.read_at = time.time(), now
    assert feed._hold_lines_until(now) == now, "they are read up to now"
    assert not feed._history
    old = feed._readers[hosts[7]]
    old.read_to, old.read_at = time.time() - 3600, now + 1.0
    feed._read(old)
    assert feed._hold_lines_until(now) == now + 1.0 + HOLD_SECONDS
    assert feed._hold_lines_until(now + 1.0 + HOLD_SECONDS) == now + 1.0 + HOLD_SECONDS
    feed.close()


@pytest.mark.parametrize("kind", [Window, WindowEntry])
def test_what_journals_are_made_of_is_no_work_for_the_collector(kind: type) -> None:
    assert not kind.__struct_config__.gc  # type: ignore[attr-defined]
