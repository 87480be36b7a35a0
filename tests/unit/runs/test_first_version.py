"""A run that the first version stored: it opens, is the same run, and becomes a file of this version."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from distconsole.errors import ConsoleError
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, LogLine, Metric, RunEnded, Window
from distconsole.runs.replay.recording import Recording
from distconsole.runs.store import run_file as run_file_module
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.run_file import SCHEMA_VERSION, RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events, summary_of
from suite.first_version import ENTRIES, RUN, unpack_first_version


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(unpack_first_version(tmp_path))


def version_of(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_a_run_that_the_first_version_stored_is_shown_as_it_was(store: RunStore) -> None:
    assert version_of(store.folder / f"{RUN}.db") == 0
    assert [record.run for record in store.runs()] == [RUN]
    with store.open(RunId(RUN)) as run_file:
        assert Counter(entry.host for entry in run_file.entries()) == ENTRIES
        assert run_file.places() == {}
        events = list(stored_events(run_file))
        summary = summary_of(run_file)
        recording = Recording(run_file)
        while recording.read(100):
            pass
        recording.close()
    assert isinstance(events[-1], RunEnded)
    assert events[-1].state is EndState.SUCCEEDED
    kinds = Counter(type(event) for event in events)
    assert kinds[Window] > 10
    assert kinds[Metric] > 10
    assert any(isinstance(e, LogLine) and "test accuracy" in e.line for e in events)
    assert summary.hosts == ("node1", "node2")
    assert summary.metrics["test_accuracy"] > 0.9
    assert recording.head.ended


def test_a_file_of_the_first_version_that_is_gone_on_with_is_one_of_this_version(
    store: RunStore,
) -> None:
    with store.open(RunId(RUN)) as run_file:
        before = list(run_file.entries()), run_file.record()
    store.create(
        RunRecord(RunId(RUN), started=before[1].started, hosts=("node1", "node2"))
    ).close()
    assert version_of(store.folder / f"{RUN}.db") == SCHEMA_VERSION
    with store.open(RunId(RUN)) as run_file:
        assert list(run_file.entries()) == before[0]
        after = run_file.record()
        assert (after.plan, after.end, after.facts) == (
            before[1].plan,
            before[1].end,
            before[1].facts,
        )
        assert run_file.places() == {}


def test_a_file_whose_change_to_this_version_is_interrupted_stays_as_it_was(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = run_file_module.SCHEMA.replace("COMMIT;", "SELECT no_room FROM here; COMMIT;")
    with monkeypatch.context() as patch:
        patch.setattr(run_file_module, "SCHEMA", half)
        with pytest.raises(ConsoleError, match="no such table: here"):
            store.create(RunRecord(RunId(RUN), hosts=("node1", "node2")))
    assert version_of(store.folder / f"{RUN}.db") == 0
    with store.open(RunId(RUN)) as run_file:
        assert run_file.count() == sum(ENTRIES.values())


def test_a_file_of_a_newer_version_is_refused_in_words_and_left_as_it_is(store: RunStore) -> None:
    path = store.folder / f"{RUN}.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 7")
    content = path.read_bytes()
    words = r"newer version of distconsole \(schema 7, this one knows 1\)"
    with pytest.raises(ConsoleError, match=words) as caught:
        store.open(RunId(RUN))
    assert str(path) in caught.value.message
    assert "upgrade" in caught.value.hint
    with pytest.raises(ConsoleError, match=words):
        store.create(RunRecord(RunId(RUN), hosts=("node1", "node2")))
    assert store.runs() == []
    assert path.read_bytes() == content


def test_how_far_a_journal_is_known_is_kept(tmp_path: Path) -> None:
    from distconsole.runs.following.follow import EntryWriter

    place = JournalPlace(63, "A", 37, 64, 100)
    with RunStore(tmp_path).create(RunRecord(RunId("run-1"), hosts=("a",))) as run_file:
        writer = EntryWriter(run_file.path)
        writer.put((), {HostName("a"): place})
        writer.flush(10)
        assert run_file.places() == {"a": place}
        writer.close()


@pytest.mark.parametrize(("filesystem", "mode"), [(0x6969, "truncate"), (0xEF53, "wal")])
def test_a_store_on_a_network_disk_shares_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, filesystem: int, mode: str
) -> None:
    where = "distconsole.runs.store.network_disk.filesystem_type"
    RunStore(tmp_path).create(RunRecord(RunId("local-1"), hosts=("a",))).close()
    monkeypatch.setattr(where, lambda _path: filesystem)
    for run in ("local-1", "new-1"):  # a home may move
        RunStore(tmp_path).create(RunRecord(RunId(run), hosts=("a",))).close()
        with contextlib.closing(sqlite3.connect(tmp_path / f"{run}.db")) as db:
            found = db.execute("PRAGMA journal_mode").fetchone()[0]
            assert (found == "wal") == (mode == "wal")


def test_the_filesystem_of_a_path_is_known_here() -> None:
    from distconsole.runs.store.network_disk import filesystem_type, is_on_network

    assert filesystem_type(Path("/proc")) == 0x9FA0
    assert filesystem_type(Path("/does/not/exist")) == 0
    assert not is_on_network(Path("/proc"))
