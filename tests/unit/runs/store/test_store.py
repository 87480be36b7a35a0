"""The files of runs.
Thousands of kept runs are listed without opening each; what the catalogue knows is only a copy.
A store on a network disk: one console keeps a run, the others only show it.
"""

import contextlib
import heapq
import os
import random
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import psutil
import pytest

from distconsole.errors import ConsoleError, RunNotFoundError
from distconsole.model import requests as ask
from distconsole.model.events import Narration, RunListed
from distconsole.model.names import HostName, RunId
from distconsole.model.requests import Where
from distconsole.model.run_events import RunEnded, RunFinding
from distconsole.operations.stored import history
from distconsole.runs.following.follow import EntryWriter, _insert, follow
from distconsole.runs.store.catalogue import NAME, stamps_in
from distconsole.runs.store.network_disk import STALE_SECONDS, KeeperLock
from distconsole.runs.store.run_file import RunFile, RunRecord, StoredEntry, connect
from distconsole.runs.store.store import RunStore, meant
from fakes.disks import refuse_rows
from fakes.journals import Journal, keep
from fakes.streams import PlayedJournal


def entries(host: str, *seqs: int, t: float = 0.0) -> list[StoredEntry]:
    return [StoredEntry(HostName(host), seq, t + seq, b'{"n":%d}' % seq) for seq in seqs]


def record(run: str, started: float = 1.0, name: str = "") -> RunRecord:
    return RunRecord(
        RunId(run), name, started, ("a", "b"), b"request", b"plan", where=Where("a,b")
    )


@pytest.fixture
def run_file(tmp_path: Path) -> Iterator[RunFile]:
    with RunStore(tmp_path).create(record("run-1")) as file:
        yield file


def test_what_is_kept_of_a_run_comes_back(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    store.create(record("run-1", name="mine")).close()
    with store.open(RunId("run-1")) as run_file:
        assert run_file.record() == record("run-1", name="mine")
        run_file.write_end(b"end")
        assert run_file.record().end == b"end"


def test_a_run_that_is_created_again_keeps_what_is_not_given(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(record("run-1")).close()
    with store.create(RunRecord(RunId("run-1"), hosts=("a",))) as run_file:
        assert run_file.record().plan == b"plan"


def test_an_entry_that_comes_twice_is_kept_once(run_file: RunFile) -> None:
    twice = [*entries("a", 1, 2, 3), *entries("a", 2, 3, 4), *entries("b", 1)]
    keep(run_file, twice, size=3)
    keep(run_file, entries("a", 4, 5))
    kept = [(entry.host, entry.seq) for entry in run_file.entries()]
    assert sorted(kept) == [*(("a", number) for number in range(1, 6)), ("b", 1)]


def test_entries_come_by_time_and_those_of_a_host_by_number(run_file: RunFile) -> None:
    set_back = [StoredEntry(HostName("b"), n, t, b"{}") for n, t in ((1, 2.5), (2, 0.5))]
    keep(run_file, [*entries("a", 1, 2, 3), *set_back])
    order = [(entry.host, entry.seq) for entry in run_file.entries()]
    assert order == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3)]


def test_a_disk_that_refuses_ends_the_keeping_and_blocks_nobody(tmp_path: Path) -> None:
    path = tmp_path / "no-table.db"
    path.touch()
    writer = EntryWriter(path)
    for first in range(1000):
        writer.put(entries("a", first + 1))
    writer.close()
    assert "no such table" in writer.failure


@pytest.mark.parametrize(("batches", "most"), [(1, 10), (200, 10 * 200)])
def test_many_entries_are_few_statements_and_pass_a_bounded_queue(
    run_file: RunFile, monkeypatch: pytest.MonkeyPatch, batches: int, most: int
) -> None:
    said: list[str] = []

    def traced(path: Path) -> sqlite3.Connection:
        db = connect(path)
        db.set_trace_callback(said.append)
        return db

    monkeypatch.setattr("distconsole.runs.following.follow.connect", traced)
    size = 1000 if batches == 1 else 100
    keep(run_file, entries("a", *range(1, batches * size + 1)), size)
    assert run_file.count() == batches * size
    assert sum("INTO entries" in each for each in said) <= most


def test_statements_of_other_numbers_of_rows_take_no_memory_each(tmp_path: Path) -> None:
    with contextlib.closing(connect(tmp_path / "a.sqlite")) as db:
        db.execute("CREATE TABLE entries (a, b)")
        before = psutil.Process().memory_info().rss
        for count in range(2000, 2100):
            _insert(db, "INSERT INTO entries", [(count, 0)] * count)
        assert psutil.Process().memory_info().rss < before + 16 * 2**20


def test_the_files_are_the_users_alone(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    with store.create(record("run-1")) as run_file:
        assert stat.S_IMODE(run_file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConsoleError, match="file"):
        RunStore(tmp_path / "file" / "runs").create(record("run-1"))


def test_a_disk_that_is_full_at_the_start_leaves_no_empty_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path)
    store.create(record("kept-1")).close()
    monkeypatch.setattr("distconsole.runs.store.run_file.SCHEMA", "SELECT no_room FROM here")
    monkeypatch.setattr("distconsole.runs.store.run_file.SCHEMA_VERSION", 99)
    for run in ("kept-1", "new-1"):
        with pytest.raises(ConsoleError, match="cannot be used"):
            store.create(record(run))
    assert [path.name for path in tmp_path.glob("*.db*")] == ["kept-1.db"]


def test_a_disk_that_refuses_what_is_known_of_a_run_is_an_error_with_its_folder(
    tmp_path: Path,
) -> None:
    store = RunStore(tmp_path)
    store.create(record("run-1")).close()
    refuse_rows(tmp_path / "run-1.db", "meta", "key = 'record'")
    with pytest.raises(ConsoleError, match=r"cannot be used: disk is full") as caught:
        store.create(record("run-1"))
    assert str(tmp_path) in caught.value.message


def test_a_full_disk_hides_no_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with store.create(record("run-1")) as run_file:
        keep(run_file, entries("a", 1, 2))
    (tmp_path / "run-1.db-shm").symlink_to(tmp_path / "no" / "room")
    assert store.resolve("last") == "run-1"
    with store.open(RunId("run-1")) as run_file:
        assert [entry.seq for entry in run_file.entries()] == [1, 2]


@pytest.mark.parametrize("content", ["", "this is not a database at all, not even a little"])
def test_a_file_that_is_no_runs_is_said_to_be_damaged(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken-1.db").write_text(content)
    store = RunStore(tmp_path)
    with pytest.raises(ConsoleError, match=r"broken-1\.db is damaged") as caught:
        store.open(RunId("broken-1"))
    assert "distconsole attach broken-1" in caught.value.hint
    with pytest.raises(RunNotFoundError, match=r"of 1 run in .* none can be read"):
        store.resolve("last")


def test_a_run_is_found_by_id_prefix_name_and_as_the_last(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for run, started, name in (("alpha-1", 1.0, "x"), ("alpha-2", 3.0, "y"), ("beta-1", 2.0, "y")):
        store.create(record(run, started, name)).close()
    found = [store.resolve(word) for word in ("alpha-1", "b", "x", "y", "last")]
    assert found == ["alpha-1", "beta-1", "alpha-1", "alpha-2", "alpha-2"]
    for ended, of_name in (("alpha-2", "beta-1"), ("beta-1", "alpha-2")):
        with store.open(RunId(ended)) as run_file:
            run_file.write_end(b"ended")
        assert store.resolve("y", unended=True) == of_name
        assert store.resolve("last", unended=True) == "alpha-2"
    assert [each.run for each in store.runs()] == ["alpha-2", "beta-1", "alpha-1"]


@pytest.mark.parametrize("word", ["nothing", "alpha", "../etc/passwd", "\x1b[2J", ""])
def test_a_word_that_names_no_run_or_several_is_an_error(tmp_path: Path, word: str) -> None:
    store = RunStore(tmp_path)
    with pytest.raises(RunNotFoundError, match="no runs yet"):
        RunStore(tmp_path / "none").resolve("last")
    for run in ("alpha-1", "alpha-2"):
        store.create(record(run)).close()
    with pytest.raises(RunNotFoundError) as caught:
        store.resolve(word)
    assert caught.value.message.isprintable()


def test_nobody_is_asked_whether_he_meant_what_he_said() -> None:
    assert meant("last", ["lost"]) == "did you mean lost? "
    assert not meant("last", [])


def test_a_file_that_is_no_database_spoils_no_list(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(record("run-1")).close()
    (tmp_path / "broken-1.db").write_text("this is not a database at all, not even a little")
    assert [each.run for each in store.runs()] == ["run-1"]


def test_a_removed_run_is_gone(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.create(record("run-1")).close()
    store.remove(RunId("run-1"))
    store.remove(RunId("run-1"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_hosts_are_merged_by_time_and_each_keeps_its_order(tmp_path: Path, count: int) -> None:
    chance = random.Random(count)
    store = RunStore(tmp_path)
    hosts = [f"node{number}" for number in range(count)]
    told = {
        # Many at the same time, and a clock that is set back.
        host: [
            StoredEntry(HostName(host), seq, chance.randrange(seq // 20 + 1) + seq // 10, b"{}")
            for seq in range(1, 200 + 50 * (int(host[4:]) % 3))
        ]
        for host in hosts
    }
    with store.create(record("run-1")) as run_file:
        keep(run_file, chain(*told.values()))
        found = list(run_file.entries())
    assert found == list(heapq.merge(*told.values(), key=lambda each: (each.t, each.host)))


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path / "runs")
    for number in range(5):
        Journal(run=f"run-{number}", seconds=3, ended=number != 4).write(store)
    return store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose files are opened from now on."""
    found: list[str] = []
    real = RunFile.__init__

    def noted(self: RunFile, path: Path) -> None:
        found.append(path.stem)
        real(self, path)

    monkeypatch.setattr(RunFile, "__init__", noted)
    return found


def listed(store: RunStore) -> dict[str, str]:
    return {run: summary.state for run, summary in history.list_summaries(store)}


ALL = {f"run-{number}": "succeeded" for number in range(4)} | {"run-4": "unknown"}


def test_what_was_listed_once_is_not_opened_again(store: RunStore, opened: list[str]) -> None:
    assert listed(store) == ALL
    assert set(opened) == set(ALL)
    opened.clear()
    assert listed(store) == ALL
    assert store.resolve("digits") in ALL
    assert store.resolve("last") in ALL
    assert opened == []


def test_a_run_that_changed_is_opened_again_and_one_that_is_gone_is_forgotten(
    store: RunStore, opened: list[str]
) -> None:
    listed(store)
    store.remove(history.RunId("run-0"))
    with store.open(history.RunId("run-4")) as run_file:
        run_file.write_end(
            b'{"event":"end","t":1.0,"run":"run-4","state":"failed","exit_code":3,"seconds":9.0}'
        )
    opened.clear()
    found = listed(store)
    assert set(opened) == {"run-4"}
    assert found["run-4"] == "failed"
    assert "run-0" not in found
    assert set(store.catalogue.read()) == set(found)


@pytest.mark.parametrize(
    "content", [b"", b"not a database at all" * 400, b"SQLite format 3\0" + b"\xff" * 4000]
)
def test_a_catalogue_that_is_damaged_is_made_anew(store: RunStore, content: bytes) -> None:
    (store.folder / NAME).write_bytes(content)
    assert listed(store) == ALL
    assert listed(store) == ALL
    assert set(store.catalogue.read()) == set(ALL)


def test_what_there_is_no_time_to_look_into_is_listed_and_looked_into_later(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as hurry:
        hurry.setattr(history, "BRIEF_SECONDS", -1.0)
        assert listed(store) == ALL
    steps = [summary.steps for _, summary in history.list_summaries(store)]
    assert steps == [60] * 5


def test_files_that_are_no_runs_are_said_and_the_rest_is_listed(store: RunStore) -> None:
    (store.folder / "run-9.db").write_bytes(b"half a file")
    events = list(history.runs(ask.Runs(), None, store))  # type: ignore[arg-type]
    assert sum(isinstance(event, RunListed) for event in events) == 5
    said = [event.text for event in events if isinstance(event, Narration)]
    assert any("run-9 cannot be read and is not listed" in text for text in said)


def test_a_folder_that_cannot_be_written_only_costs_time(store: RunStore) -> None:
    (store.folder / NAME).mkdir()
    assert listed(store) == ALL
    assert listed(store) == ALL


def test_a_run_that_is_being_written_has_another_stamp(store: RunStore) -> None:
    before = stamps_in(store.folder)
    with store.open(history.RunId("run-4")) as run_file:
        run_file.write_end(b"{}")
        assert stamps_in(store.folder)["run-4"] != before["run-4"]
    assert stamps_in(store.folder / "nowhere") == {}


def journal() -> PlayedJournal:
    verdict = {"state": "succeeded", "exit_code": 0, "first_failure": None}
    end = {"state": "succeeded", "exit_code": 0, "seconds": 1.0}
    entries = [
        {"seq": 1, "t": 1.0, "kind": "verdict", **verdict},
        {"seq": 2, "t": 1.0, "kind": "end", **end},
    ]
    return PlayedJournal([{"entries": entries}])


def test_a_run_that_somebody_else_keeps_is_shown_and_not_kept_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distconsole.runs.store.network_disk.filesystem_type", lambda _path: 0x6969
    )
    store, record = RunStore(tmp_path), RunRecord(RunId("run-1"), hosts=("a",))
    other = KeeperLock(tmp_path / "run-1.db")
    assert not other.holder
    events = list(follow(store, record, lambda _host, _after, _journal: journal()))
    (finding,) = [event for event in events if isinstance(event, RunFinding)]
    assert f"{socket.gethostname()} (pid {os.getpid()}) keeps this run in" in finding.seen
    assert any(isinstance(event, RunEnded) for event in events)
    with store.open(RunId("run-1")) as run_file:
        assert (run_file.count(), run_file.record().end) == (0, b"")
    other.close()
    list(follow(store, record, lambda _host, _after, _journal: journal()))
    with store.open(RunId("run-1")) as run_file:
        assert run_file.count() == 2
        assert run_file.record().end
        assert run_file.last_seq(HostName("a")) == 2
    assert not list(tmp_path.glob("*-keeper"))


def test_a_keeper_that_is_gone_is_followed_by_the_next(tmp_path: Path) -> None:
    path, file = tmp_path / "run-1.db", tmp_path / "run-1.db-keeper"
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    file.write_text(f"{socket.gethostname()} {dead.pid}")
    lock = KeeperLock(path)
    assert not lock.holder
    lock.close()
    file.write_text("login2 4711")
    assert KeeperLock(path).holder == "login2 (pid 4711)"
    before = file.stat().st_mtime - STALE_SECONDS - 1
    os.utime(file, (before, before))
    lock = KeeperLock(path)
    assert not lock.holder
    lock.close()
