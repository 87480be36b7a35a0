"""A run in a few numbers: what the quicker fold makes of its record is what the whole picture says.
A run that the first version stored: it opens, is the same run, and becomes a file of this version.
"""

import contextlib
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import ConsoleError
from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, LogLine, Metric, RunEnded, Window
from distconsole.runs.following.follow import EntryWriter
from distconsole.runs.replay.recording import Recording
from distconsole.runs.store import run_file as run_file_module
from distconsole.runs.store.place import JournalPlace
from distconsole.runs.store.run_file import SCHEMA_VERSION, RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import (
    UNSUMMED,
    stored_events,
    stored_timeline,
    summarise,
    summary_of,
)
from distconsole.runs.timeline import RunTimeline
from fakes.journals import START, Journal, keep
from suite.first_version import ENTRIES, RUN, unpack_first_version

Told = list[tuple[float, int, dict[str, Any]]]


class Faulty(Journal):
    """A journal with its entries changed on the way."""

    def __init__(self, change: Callable[[Told], Told], **more: Any) -> None:
        super().__init__(hosts=2, per_host=4, **more)
        object.__setattr__(self, "change", change)

    def _told(self) -> Iterator[tuple[float, int, dict[str, Any]]]:
        yield from self.change(list(super()._told()))  # type: ignore[attr-defined]


def each_window(
    change: Callable[[float, dict[str, Any]], dict[str, Any]],
) -> Callable[[Told], Told]:
    def changed(told: Told) -> Told:
        return [
            (t, place, {**body, **change(t - START, body)} if body["kind"] == "window" else body)
            for t, place, body in told
        ]

    return changed


def shift(seconds: Callable[[float], float]) -> Callable[[Told], Told]:
    """Move what the second host tells, by its clock or because it comes late."""

    def changed(told: Told) -> Told:
        return [(t + seconds(t - START) * place, place, body) for t, place, body in told]

    return changed


def restart(told: Told) -> Told:
    attempt = {"kind": "attempt", "restart": 1, "of": 2}
    again = START + 30
    changed: Told = []
    for t, place, body in told:
        if t >= again and body["kind"] == "window":
            step = body["step"] - 20 * 23
            points = {"loss": [[step - 10, 1.0, 32.0], [step, 0.9, 32.0]]}
            body = {**body, "step": step, "points": points}
        changed.append((t, place, body))
    at = next(number for number, (t, _, _) in enumerate(changed) if t >= again)
    return [*changed[:at], (again, 0, attempt), (again, 1, attempt), *changed[at:]]


def lose(told: Told) -> Told:
    note = {
        "kind": "note",
        "check": "run.node_lost",
        "severity": "warn",
        "summary": "lost",
        "host": "node2",
    }
    at = next(number for number, (t, _, _) in enumerate(told) if t >= START + 40)
    return [*told[:at], (told[at][0], 0, note), *told[at:]]


WAITS = {"waited_ms": [20.0, 0.0, 0.0, 20.0, 0.0]}
FAULTS: dict[str, Faulty] = {
    "as ever": Faulty(list),
    "slow": Faulty(list, slow=5),
    "slow in lockstep, then failed": Faulty(list, slow=2, lockstep=True, fails=2),
    "slow, with waits": Faulty(
        each_window(lambda _, body: WAITS if body["rank"] != 3 else {"waited_ms": [0.0] * 5}),
        slow=3, lockstep=True,
    ),
    "slow for a while": Faulty(
        each_window(
            lambda t, body: {"step_ms": [90.0, 91.0], "data_ms": 40.0}
            if body["rank"] == 6 and 20 < t < 40 else {}
        )
    ),
    "restart": Faulty(restart, slow=1),
    "node lost": Faulty(lose),
    "clock ahead": Faulty(shift(lambda _: 7.3), slow=5),
    "clock set back": Faulty(shift(lambda t: -11.0 if t > 30 else 0.0)),
    "late journal": Faulty(shift(lambda t: 14.0 if t > 30 else 0.0)),
    "silent rank": Faulty(
        each_window(lambda t, body: {"points": {}} if body["rank"] == 7 and t > 25 else {})
    ),
    "thinned points": Faulty(
        each_window(lambda _, body: {"points": {"loss": body["points"]["loss"][body["rank"] % 2 :]}})
    ),
    "diverged": Faulty(
        each_window(
            lambda t, body: {"points": {"loss": [[body["step"], math.nan, 32.0]]}, "step_ms": [math.inf, 1.0]}
            if body["rank"] == 1 and 9 < t < 12 else {}
        ),
        slow=5,
        lockstep=True,
    ),
    "mute rank": Faulty(
        lambda told: [
            (t, place, body)
            for t, place, body in told
            if body["kind"] != "window" or body["rank"] != 7 or not 20 < t - START < 45
        ]
    ),
    "unknown": Faulty(
        each_window(
            lambda _, body: {"points": {"loss": [[body["step"], None, None]]}, "step_ms": None}
            if body["rank"] == 1 else {}
        )
    ),
    "batches first": Faulty(each_window(lambda t, _: {"batches": True} if t < 30 else {})),
    "epochs from 0": Faulty(
        each_window(
            lambda _, body: {"points": {"loss": [[body["step"] % 400, body["step"] / 7, 32.0]]}}
        )
    ),
    "damaged": Faulty(each_window(lambda t, body: {"rank": "two"} if body["rank"] == 2 and t > 50 else {})),
    "short of data": Faulty(
        each_window(lambda _, body: {"workers": [2, 99.0, 0.0], "data_ms": 30.0})
    ),
    "short of data for a while": Faulty(
        each_window(
            lambda t, body: {"workers": [2, 99.0, 0.0], "data_ms": 30.0 if 20 < t < 40 else 1.0}
        ),
        slow=5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_summary_is_that_of_the_whole_picture(tmp_path: Path, fault: str) -> None:
    journal, store = FAULTS[fault], RunStore(tmp_path)
    journal.write(store)
    with store.open(RunId(journal.run)) as run_file:
        seen = stored_timeline(run_file)
        summed = stored_timeline(run_file, UNSUMMED, sums=True)
        record = run_file.record()
        # Compared as text: NaN is not equal to itself.
        assert repr(summary_of(run_file)) == repr(summarise(record, seen))
    assert summed.findings == seen.findings
    points = {name: repr(series.points()) for name, series in seen.metrics.items()}
    assert {name: repr(series.points()) for name, series in summed.metrics.items()} == points
    assert seen.steps is not None


def test_a_summary_makes_no_event_of_a_window_whose_workers_suffice(tmp_path: Path) -> None:
    journal, store = Faulty(each_window(lambda *_: {"workers": [8, 9.0, 0.0]})), RunStore(tmp_path)
    journal.write(store)
    timeline, made = RunTimeline(), Counter[type]()
    with store.open(RunId(journal.run)) as run_file:
        for event in stored_events(run_file, UNSUMMED, sums=timeline):
            timeline.apply(event)
            made[type(event)] += 1
    assert made[Window] == 0
    assert timeline.steps == 20 * journal.seconds - 1


def test_hosts_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    journal = Journal()
    journal.write(store)
    names = ["", " ", "a", "A", "a'b", "z\x00", "é", "\U0001f600", "node10", "node2"]
    with store.open(RunId(journal.run)) as run_file:
        assert list(run_file._hosts()) == sorted(journal.names)
        told = [(name, seq) for name in names for seq in (1, 2)]
        keep(run_file, [StoredEntry(HostName(name), seq, 1.0, b"{}") for name, seq in told])
        assert set(run_file._hosts()) == {*journal.names, *names}
        run_file._db.execute("DELETE FROM entries")
        assert run_file._hosts() == []


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
