"""The journal: batches that are there or not, numbers without a gap, whatever its writer dies of."""

import _thread
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal import journal as journal_module
from distconsole_agent.journal.journal import Journal, Upkeep
from distconsole_agent.journal.lines import dump, seq_of
from distconsole_agent.journal.reader import JournalError, Reader
from fakes.node_journals import note, opened, read_after
from suite.seeds import seeds


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 2000)


@pytest.fixture
def writer(folder: Path) -> Iterator[Journal]:
    journal = opened(folder)
    yield journal
    journal.close()


def numbers(entries: list[dict[str, Any]]) -> list[int]:
    return [entry["seq"] for entry in entries]


def test_numbers_count_from_one_and_a_reader_begins_after_the_one_it_has(writer: Journal) -> None:
    writer.append([note("0"), note("1")], {})
    for index in range(2, 10):
        writer.append([note(str(index))], {})
    entries = [(entry["seq"], entry["summary"]) for entry in read_after(writer, 0)]
    assert entries == [(index + 1, str(index)) for index in range(10)]
    assert writer.last_seq == 10
    assert numbers(read_after(writer, 7)) == [8, 9, 10]
    assert read_after(writer, 10) == []


def test_marks_of_all_batches_are_merged(folder: Path, writer: Journal) -> None:
    writer.append([note("a")], {"logs": {"x": 5, "y": 1}})
    writer.append([note("b")], {"logs": {"x": 9}, "shim": {"offset": 3}})
    writer.close()
    journal = opened(folder)
    assert journal.mark == {"logs": {"x": 9, "y": 1}, "shim": {"offset": 3}}
    assert journal.last_seq == 2
    journal.close()


@pytest.mark.usefixtures("small_segments")
def test_full_segments_are_compressed_and_read_on(folder: Path, writer: Journal) -> None:
    for index in range(200):
        writer.append([note(f"entry {index}")], {"shim": {"offset": index}})
    assert writer.sync_with([], 10)
    names = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    assert len(names) > 5
    assert all(name.endswith(".gz") for name in names[:-1])
    assert names[-1].endswith(".jsonl")
    assert numbers(read_after(writer, 0)) == list(range(1, 201))
    for after in (1, 57, 120, 199):
        assert numbers(read_after(writer, after)) == list(range(after + 1, 201))


def test_a_segment_that_is_missing_is_said(folder: Path, writer: Journal) -> None:
    writer.append([note("a")], {})
    reader = Reader(writer.folder, 0)
    assert len(reader.read()) == 1
    reader.close()
    (folder / "000001.jsonl").unlink()
    with pytest.raises(JournalError, match="missing"):
        reader.read()


def test_only_one_writes_and_the_other_reads_along(folder: Path, writer: Journal) -> None:
    other = Journal(str(folder))
    assert not other.open_writer()
    writer.append([note("a")], {})
    other.refresh()
    assert other.last_seq == 1
    writer.append([note("b"), {"t": 1.0, "kind": "end"}], {})
    other.refresh()
    assert (other.last_seq, other.ended) == (3, True)
    writer.close()
    assert other.open_writer()
    other.close()


def test_a_disk_that_is_full_leaves_the_journal_as_it_was(
    folder: Path, writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append([note("a")], {})
    real_write = os.write
    taken: list[int] = []

    def full(fd: int, data: Any) -> int:
        if taken:
            raise OSError(28, "No space left on device")
        taken.append(real_write(fd, bytes(data)[:20]))
        return taken[0]

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            writer.append([note("b")], {"shim": {"offset": 1}})
    assert (writer.last_seq, writer.mark) == (1, {})
    writer.append([note("b")], {"shim": {"offset": 1}})
    assert numbers(read_after(writer, 0)) == [1, 2]


def test_a_reader_never_sees_half_a_batch(folder: Path, writer: Journal) -> None:
    writer.append([note("a")], {})
    reader = Reader(writer.folder, 0)
    assert len(reader.read()) == 1
    path = folder / "000001.jsonl"
    batch = dump({"seq": 2, "t": 1.0, "kind": "note"}) + dump({"mark": {}})
    whole = path.read_bytes()
    for size in range(len(batch)):
        path.write_bytes(whole + batch[:size])
        assert reader.read() == []
    path.write_bytes(whole + batch)
    assert [seq_of(line) for line in reader.read()] == [2]
    reader.close()


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", seeds(5))
def test_readers_at_their_own_pace_miss_nothing(writer: Journal, seed: int) -> None:
    chance = random.Random(seed)
    readers = [Reader(writer.folder, 0) for _ in range(3)]
    seen: list[list[int]] = [[] for _ in readers]
    for _ in range(150):
        writer.append(
            [note("x" * chance.randrange(300)) for _ in range(chance.randrange(1, 5))], {}
        )
        for reader, got in zip(readers, seen, strict=True):
            if chance.random() < 0.3:
                got += [seq_of(line) for line in reader.read()]
    for reader, got in zip(readers, seen, strict=True):
        got += [seq_of(line) for line in reader.read_all()]
        reader.close()
        assert got == list(range(1, writer.last_seq + 1))


def test_waiting_ends_with_news_or_when_given_up(writer: Journal) -> None:
    writer.append([note("a")], {})
    assert writer.wait(0, lambda: False)
    assert not writer.wait(1, lambda: True)


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def thread_without_memory(*_: object) -> None:
    """What the interpreter does where a new thread has no memory to begin with: nothing, and nobody is told."""


@pytest.mark.parametrize("start", [no_thread, thread_without_memory])
def test_what_is_owed_to_the_disk_is_done_once_there_is_a_thread_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., None]
) -> None:
    monkeypatch.setattr(journal_module, "BEGIN_SECONDS", 0.2)
    done: list[str] = []
    upkeep = Upkeep(str(tmp_path))
    with monkeypatch.context() as starved:
        starved.setattr(_thread, "start_new_thread", start)
        upkeep.add("one", lambda: done.append("one"))
        assert not upkeep.wait(0.1)
    assert upkeep.wait(10)
    assert done == ["one"]
    upkeep.close(1)


def test_a_job_for_which_there_was_no_memory_is_done_again(tmp_path: Path) -> None:
    tries: list[int] = []

    def job() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise MemoryError

    upkeep = Upkeep(str(tmp_path))
    upkeep.add("one", job)
    assert upkeep.wait(10)
    assert len(tries) == 3
    assert not upkeep.failure
