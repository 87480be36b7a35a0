"""A stored run at any moment: what seeking gives is what folding from the beginning gives."""

import math
import random
import sqlite3
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from distconsole.model.names import HostName, RunId
from distconsole.model.run_events import EndState, RunEnded, RunEvents, RunFinding
from distconsole.rpc.wire import encode_entry
from distconsole.runs.replay import recording as recordings
from distconsole.runs.replay.recording import Recording, RunState, restore
from distconsole.runs.store.planned import stored_plan
from distconsole.runs.store.run_file import RunFile, RunRecord, StoredEntry
from distconsole.runs.store.store import RunStore
from fakes.journals import START, Journal
from suite.seeds import seeds

RUN = RunId("digits-1121-a3f9")
SEEKS = 20


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture(autouse=True)
def many_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "CHECKPOINT_ENTRIES", 37)
    monkeypatch.setattr(recordings, "CHECKPOINT_SHARE", 10**6)


def plain(value: Any) -> Any:
    """Everything that ``value`` holds, as what can be compared; NaN is equal to itself."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, Mapping):
        return [(plain(key), plain(each)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, list | tuple | deque | array):
        return [plain(each) for each in value]
    if isinstance(value, msgspec.Struct):
        return [plain(getattr(value, name)) for name in value.__struct_fields__]
    if is_dataclass(value):
        return [plain(getattr(value, each.name)) for each in fields(value)]
    names = [*getattr(value, "__dict__", ()), *getattr(type(value), "__slots__", ())]
    if not type(value).__module__.startswith("distconsole") or not names:
        return repr(value)
    return [(name, plain(getattr(value, name))) for name in names]


def state(moment: RunState) -> Any:
    return [
        plain(moment.timeline),
        plain(moment.history),
        plain(moment._reducer),
        moment.cursors,
        moment.t,
    ]


def folded(run_file: RunFile, t: float) -> RunState:
    """The run at ``t``, by folding from its beginning."""
    record = run_file.record()
    moment = RunState(record, stored_plan(record))
    for stored in run_file.entries():
        if stored.t > t:
            break
        with suppress(ValueError):
            list(moment.take(stored))
    return moment


def read_whole(run_file: RunFile, told: list[RunEvents] | None = None) -> Recording:
    recording = Recording(run_file, None, (lambda _: None) if told is None else told.append)
    while recording.read(100):
        pass
    return recording


def troubled(seconds: int = 60) -> Iterator[StoredEntry]:
    """A run with restarts, NaN, printed lines, a host whose clock goes back, and entries that mean nothing."""
    entries = list(Journal(run=RUN, hosts=3, seconds=seconds, slow=1, fails=4).entries())
    last = {
        host: max(e.seq for e in entries if e.host == host) for host in {e.host for e in entries}
    }
    for number, entry in enumerate(entries):
        if number == len(entries) // 2:
            for host in last:
                last[host] += 1
                body = {
                    "seq": last[host],
                    "t": entry.t,
                    "kind": "attempt",
                    "restart": 1,
                    "of": 3,
                    "checkpoint": "ck.pt",
                }
                yield StoredEntry(HostName(host), entry.seq + 10_000, entry.t, encode_entry(body))
        if number % 97 == 5:
            entry = StoredEntry(entry.host, entry.seq, entry.t, entry.body[: len(entry.body) // 2])
        t = entry.t - 3.0 if entry.host == "node2" and 200 < number < 260 else entry.t
        if number % 53 == 1:
            entry = StoredEntry(
                entry.host, entry.seq, t, entry.body.replace(b'"loss":', b'"loss":NaN,"x":')
            )
        yield StoredEntry(
            entry.host, entry.seq + (20_000 if number > len(entries) // 2 else 0), t, entry.body
        )


def kept(store: RunStore, entries: Iterator[StoredEntry], end: RunEnded | None = None) -> RunFile:
    journal = Journal(run=RUN, hosts=3)
    record = RunRecord(
        RUN, "digits", START, journal.names, b"", msgspec.json.encode(journal.plan()),
        b"" if end is None else msgspec.json.encode(end),
    )  # fmt: skip
    store.create(record).close()
    with closing(sqlite3.connect(store.folder / f"{RUN}.db")) as db, db:
        db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?, ?)",
            [(e.host, e.seq, e.t, e.body) for e in entries],
        )
    return store.open(RUN)


@pytest.mark.parametrize("seed", seeds(2))
def test_a_moment_by_seeking_is_that_by_folding(store: RunStore, seed: int) -> None:
    chance = random.Random(seed)
    with kept(store, troubled()) as run_file, closing(read_whole(run_file)) as recording:
        assert len(recording._times) > 5
        for _ in range(SEEKS):
            t = chance.uniform(recording.start - 2, recording.end - 0.01)
            assert state(recording.at(t).state) == state(folded(run_file, t)), t


@pytest.mark.parametrize("uuid", ["GPU-1", "\ud800"], ids=["plain", "half a character"])
def test_a_checkpoint_is_restored_as_it_was(uuid: str) -> None:
    journal = Journal(run=RUN, hosts=3)
    plan = journal.plan()
    moment = RunState(RunRecord(RUN, "digits", START, journal.names), plan)
    for stored in journal.entries():
        list(moment.take(stored))
    key, gpu = next(iter(moment.timeline.gpus.items()))
    del moment.timeline.gpus[key]
    gpu = msgspec.structs.replace(gpu, uuid=uuid, util=math.nan)
    moment.timeline.gpus[gpu.key] = gpu
    again = restore(moment.checkpoint(), plan)
    assert moment.timeline.plan is plan
    assert again.timeline.plan is plan
    assert state(again) == state(moment)


def test_going_on_from_a_moment_is_folding_to_the_later_one(store: RunStore) -> None:
    with kept(store, troubled()) as run_file, closing(read_whole(run_file)) as recording:
        walk = recording.at(START + 9.5)
        for t in (START + 9.6, START + 20.0, START + 41.3, START + 66.0):
            while not walk.to(t, entries=25):
                pass
            assert state(walk.state) == state(folded(run_file, t)), t


def test_what_is_not_read_yet_can_be_sought_as_far_as_it_is(store: RunStore) -> None:
    Journal(run=RUN).write(store)
    with store.open(RUN) as run_file, closing(Recording(run_file)) as recording:
        assert recording.read(150)
        t = recording.end - 5
        assert state(recording.at(t).state) == state(folded(run_file, t))


def test_what_stands_out_is_marked_in_order_of_time(store: RunStore) -> None:
    told: list[RunEvents] = []
    with kept(store, troubled()) as run_file, closing(read_whole(run_file, told)) as recording:
        kinds = [mark.kind for mark in recording.marks]
        assert {"begin", "finding", "restart", "end"} <= set(kinds)
        assert [mark.t for mark in recording.marks] == sorted(mark.t for mark in recording.marks)
        restart = next(mark for mark in recording.marks if mark.kind == "restart")
        assert restart.text == "restart 1 of 3 from ck.pt"
        assert len(told) > run_file.count()
        assert recording.time_of_step(100) == START + 7 + 5
        assert recording.time_of_step(10**9) is None


def test_an_end_that_no_host_told_is_the_last_moment(store: RunStore) -> None:
    end = RunEnded(t=START + 90, run=RUN, state=EndState.FAILED, exit_code=3, seconds=90.0)
    entries = (e for e in Journal(run=RUN, hosts=3, ended=False).entries())
    with kept(store, entries, end) as run_file, closing(read_whole(run_file)) as recording:
        assert recording.end == START + 90
        assert recording.at(START + 89).state.timeline.end is None
        assert recording.at(START + 90).state.timeline.end == end


def test_a_record_that_is_damaged_in_places_shows_the_rest_and_says_so(store: RunStore) -> None:
    told: list[RunEvents] = []
    with kept(store, troubled()) as run_file, closing(read_whole(run_file, told)) as recording:
        said = [e for e in told if isinstance(e, RunFinding) and e.check == "run.record_damaged"]
        assert len(said) == 1
        assert "entries are left out" in said[0].summary
        assert "of node1 cannot be read" in said[0].seen
        assert recording.head.timeline.ranks[0].step is not None


def test_a_page_of_the_file_that_is_lost_costs_only_what_lay_on_it(store: RunStore) -> None:
    Journal(run=RUN, hosts=2, seconds=400).write(store)
    path = store.folder / f"{RUN}.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page = db.execute("PRAGMA page_size").fetchone()[0]
    data = bytearray(path.read_bytes())
    middle = len(data) // page // 2
    data[middle * page : (middle + 1) * page] = b"\xff" * page
    path.write_bytes(data)
    told: list[RunEvents] = []
    with store.open(RUN) as run_file, closing(read_whole(run_file, told)) as recording:
        assert run_file.damage
        timeline = recording.head.timeline
        assert any(f.check == "run.record_damaged" for f in timeline.findings)
        assert timeline.end is not None, "what lies behind the page is read, too"
        assert recording.head.entries > 1000
