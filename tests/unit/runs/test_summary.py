"""A run in a few numbers: what the quicker fold makes of its record is what the whole picture says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model.names import HostName, RunId
from distconsole.rpc.wire import encode_entry
from distconsole.runs.following.follow import EntryWriter
from distconsole.runs.store.run_file import StoredEntry
from distconsole.runs.store.store import RunStore
from distconsole.runs.summary import stored_events, summarise, summary_of
from distconsole.runs.timeline import RunTimeline
from fakes.journals import Journal


def with_restart(journal: Journal) -> Iterator[StoredEntry]:
    """Yield a run's entries, its second half as a second attempt."""
    for entry in journal.entries():
        late = entry.t > journal.plan().t + journal.seconds / 2
        seq = 2 * entry.seq + late
        yield StoredEntry(entry.host, seq, entry.t, entry.body)
    for host in journal.names:
        t = journal.plan().t + journal.seconds / 2
        body = {"seq": 1, "t": t, "kind": "attempt", "restart": 1, "of": 2, "checkpoint": "ck"}
        yield StoredEntry(HostName(host), journal.seconds, t, encode_entry(body))


@pytest.mark.parametrize("fails", [None, 3])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_summary_is_that_of_the_whole_picture(
    tmp_path: Path, fails: int | None, restarted: bool
) -> None:
    journal = Journal(hosts=3, seconds=40, slow=2, fails=fails)
    store = RunStore(tmp_path / "runs")
    journal.write(store)
    path = store.folder / f"{journal.run}.db"
    if restarted:
        writer = EntryWriter(path)
        writer.put(list(with_restart(journal)))
        writer.close()
    with store.open(RunId(journal.run)) as run_file:
        timeline = RunTimeline()
        for event in stored_events(run_file):
            timeline.apply(event)
        summary = summary_of(run_file)
        assert summary == summarise(run_file.record(), timeline)
        assert summary.samples_s
        assert summary.metrics
        assert summary.steps


def test_hosts_are_found_whatever_they_are_called(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "runs")
    journal = Journal()
    journal.write(store)
    names = ["", " ", "a", "A", "a'b", "z\x00", "é", "\U0001f600", "node10", "node2"]
    with store.open(RunId(journal.run)) as run_file:
        assert list(run_file._hosts()) == sorted(journal.names)
        writer = EntryWriter(run_file.path)
        writer.put(
            [StoredEntry(HostName(name), seq, 1.0, b"{}") for name in names for seq in (1, 2)]
        )
        writer.close()
        assert set(run_file._hosts()) == {*journal.names, *names}
        run_file._db.execute("DELETE FROM entries")
        assert run_file._hosts() == []
