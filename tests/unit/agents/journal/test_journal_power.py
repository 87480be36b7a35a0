"""A journal after a power cut: whatever the disk kept of it, it goes on, and says how far it goes back."""

import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal import journal as journal_module
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.lines import seq_of
from distconsole_agent.journal.reader import segments
from fakes.node_journals import note, opened, read_after
from suite.first_version import ENTRIES, unpack_first_version
from suite.seeds import seeds

SEGMENT = "000001.jsonl"


@pytest.fixture
def never_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about the disk under the test."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def written(folder: Path, batches: int = 4) -> tuple[bytes, list[tuple[int, int]], str]:
    """Return a small journal's bytes, where its batches end with how many entries, and its writer."""
    journal, ends = opened(folder), [(0, 0)]
    for batch in range(batches):
        journal.append([note(f"{batch}-{one}") for one in range(2)], {"shim": {"offset": batch}})
        ends.append(((folder / SEGMENT).stat().st_size, journal.last_seq))
    journal.close()
    return (folder / SEGMENT).read_bytes(), ends, journal.journal_id


def check_goes_on(folder: Path, kept: int, writer: str) -> None:
    journal = opened(folder)
    assert journal.last_seq == kept
    assert journal.mark == ({"shim": {"offset": kept // 2 - 1}} if kept else {})
    if kept:
        assert journal.still_has(writer, 6) == kept
    journal.append([note("next")], {})
    assert journal.still_has(writer, 6) == kept
    entries = read_after(journal)
    assert [entry["seq"] for entry in entries] == list(range(1, kept + 2))
    assert [e["summary"] for e in entries[:-1]] == [f"{n // 2}-{n % 2}" for n in range(kept)]
    journal.close()


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "cut": lambda whole, at: whole[:at],
    "zeros from there": lambda whole, at: whole[:at] + bytes(len(whole) - at),
    "another byte": lambda whole, at: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :],
}


@pytest.mark.usefixtures("never_synced")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_journal_goes_on_from_its_last_whole_batch(folder: Path, damage: str) -> None:
    whole, ends, writer = written(folder, batches=3)
    for place in range(len(whole)):
        (folder / SEGMENT).write_bytes(DAMAGES[damage](whole, place))
        check_goes_on(folder, max(seq for end, seq in ends if end <= place), writer)


def test_what_was_cut_behind_damage_is_counted_and_a_torn_write_is_none(folder: Path) -> None:
    whole, ends, _writer = written(folder)
    for content, lost in (
        (whole + bytes(100), 100),
        (whole[: ends[2][0] + 9] + bytes(50), 59),
        (whole[: ends[2][0] + 9], 0),
        (bytes(len(whole)), len(whole)),
        (b"", 0),
    ):
        (folder / SEGMENT).write_bytes(content)
        journal = opened(folder)
        assert journal.lost_bytes == lost
        journal.close()


def test_a_reader_passes_over_what_is_damaged(folder: Path) -> None:
    whole, _ends, _writer = written(folder)
    second = whole.index(b'{"seq":2')
    (folder / SEGMENT).write_bytes(whole[: second + 10] + b"\0" + whole[second + 11 :])
    journal = Journal(str(folder))
    assert [entry["seq"] for entry in read_after(journal)] == [1, 3, 4, 5, 6, 7, 8]
    journal.close()


def test_writers_who_lost_entries_one_after_the_other_are_all_known(folder: Path) -> None:
    writers: list[tuple[str, int, int]] = []
    for written_entries, kept in ((10, 7), (5, 9), (4, 3), (6, 6)):
        journal = opened(folder)
        begun = journal.last_seq
        for _ in range(written_entries):
            journal.append([note("x")], {})
        journal.close()
        writers.append((journal.journal_id, begun, begun + written_entries))
        lines = (folder / SEGMENT).read_bytes().splitlines(keepends=True)
        last = max(at for at, line in enumerate(lines) if seq_of(line) == kept)
        (folder / SEGMENT).write_bytes(b"".join(lines[: last + 2]))
    journal = opened(folder)
    assert [journal.still_has(name, last) for name, _begun, last in writers] == [3, 0, 0, 6]
    assert journal.still_has("somebody else", 5) == 0
    journal.close()


def test_a_writer_that_follows_one_that_lost_nothing_has_all_its_entries(folder: Path) -> None:
    first = opened(folder)
    first.append([note("a"), note("b")], {})
    first.close()
    second = opened(folder)
    second.append([note("c")], {})
    assert [second.still_has(first.journal_id, after) for after in (1, 2)] == [1, 2]
    reading = Journal(str(folder))
    reading.read_signature()
    assert reading.journal_id == second.journal_id != first.journal_id
    assert reading.still_has(second.journal_id, 3) == 3
    second.close()
    reading.close()


@pytest.mark.parametrize(
    ("content", "lost"), [(bytes(300), 300), (b'{"mark":{"shim"', 0)], ids=["zeros", "torn"]
)
def test_a_last_segment_without_a_mark_behind_a_compressed_one_is_taken_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, lost: int
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 500)
    journal = opened(folder)
    while 3 not in segments(journal.folder):
        journal.append([note("x")], {"shim": {"offset": journal.last_seq}})
    before = journal.last_seq - 1
    assert journal.sync_with([], 10)
    journal.close()
    (folder / "000003.jsonl").write_bytes(content)
    journal = opened(folder)
    assert (journal.last_seq, journal.lost_bytes) == (before, lost)
    journal.append([note("next")], {})
    assert [entry["seq"] for entry in read_after(journal)] == list(range(1, before + 2))
    journal.close()


def test_each_segment_that_is_to_be_synced_is_though_the_disk_is_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 500)
    behind, synced = threading.Event(), []

    def fsync(fd: int) -> None:
        assert behind.wait(30)
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(journal_module, "compress", lambda *_: None)
    journal = opened(folder)
    while 4 not in segments(journal.folder):
        journal.append([{**note("x"), "kind": "failure"}], {})
    assert synced == []  # nobody waits for the disk
    behind.set()
    assert journal.sync_with([], 30)
    journal.close()
    assert {"000001.jsonl", "000002.jsonl", "000003.jsonl", "000004.jsonl", "journal"} <= {*synced}


class Disk:
    """What a folder's files may be after a power cut: what was synced, and any part of the rest.

    Content that is not synced may be there, or not, or in part, or as zeros; names that were given
    or taken since the folder was synced may be so or not, each by itself.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, int] = {}
        self._content: dict[int, bytes] = {}
        self._synced: dict[int, bytes] = {}
        self._synced_names: dict[str, int] = {}
        self._pending: list[tuple[str, str | None, int]] = []
        self._files = itertools.count()

    def look(self) -> None:
        """Take what the files are by now."""
        for path in self.folder.iterdir():
            if path.name not in self._names:
                self._names[path.name] = file = next(self._files)
                self._pending.append((path.name, None, file))
            self._content[self._names[path.name]] = path.read_bytes()

    def sync(self, path: str) -> None:
        self.look()
        if path == str(self.folder):
            self._synced_names, self._pending = dict(self._names), []
        else:
            file = self._names[Path(path).name]
            self._synced[file] = self._content[file]

    def rename(self, old: str, new: str) -> None:
        file = self._names.pop(Path(old).name)
        self._names[Path(new).name] = file
        self._pending.append((Path(new).name, Path(old).name, file))

    def unlink(self, path: str) -> None:
        name = Path(path).name
        self._pending.append((name, name, self._names.pop(name)))

    def crashed(self, chance: random.Random, into: Path) -> None:
        """Write one state that a power cut may leave."""
        names = dict(self._synced_names)
        some = chance.choice((0.0, 0.5, 1.0))
        for new, old, file in self._pending:
            if chance.random() >= some:
                continue
            if old is not None:
                names.pop(old, None)
            if old != new:
                names[new] = file
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir()
        for name, file in names.items():
            (into / name).write_bytes(self._kept_of(file, chance))

    def _kept_of(self, file: int, chance: random.Random) -> bytes:
        synced, now = self._synced.get(file, b""), self._content[file]
        if now[: len(synced)] != synced:  # cut since, which may not have reached the disk
            return chance.choice((synced, now))
        rest = now[len(synced) :]
        place = chance.randrange(len(rest) + 1)
        hole = chance.randrange(len(rest) + 1)
        gap = bytes(max(0, hole - place))
        return synced + chance.choice(
            (
                rest,
                b"",
                rest[:place],
                bytes(len(rest)),
                rest[:place] + bytes(len(rest) - place),
                rest[:place] + gap + rest[place + len(gap) :],
            )
        )


Listener = Callable[[], None]


@pytest.fixture
def disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Disk, list[Listener]]]:
    """The folder's disk, and who is told after each call that changes it."""
    disk, listeners, one_at_a_time = Disk(folder), [], threading.RLock()
    real_write, real_rename, real_unlink = os.write, os.rename, os.unlink

    def told() -> None:
        disk.look()
        for listener in listeners:
            listener()

    def path_of(file: int | str) -> str:
        return (
            str(Path(f"/proc/self/fd/{file}").readlink()) if isinstance(file, int) else str(file)
        )

    def write(fd: int, data: Any) -> int:
        done = real_write(fd, data)
        told()
        return done

    def fsync(fd: int) -> None:
        disk.sync(path_of(fd))
        told()

    def rename(old: str, new: str) -> None:
        disk.look()
        real_rename(old, new)
        disk.rename(old, new)
        told()

    def unlink(path: str) -> None:
        disk.look()
        real_unlink(path)
        disk.unlink(path)
        told()

    def in_turn(noted: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: int | str, *args: Any, **named: Any) -> Any:
            if not path_of(file).startswith(str(folder)):
                return real(file, *args, **named)
            with one_at_a_time:
                return noted(file, *args, **named)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", in_turn(write, real_write))
        patch.setattr(os, "fsync", in_turn(fsync, lambda _fd: None))
        patch.setattr(os, "rename", in_turn(rename, real_rename))
        patch.setattr(os, "unlink", in_turn(unlink, real_unlink))
        yield disk, listeners


@pytest.mark.parametrize("seed", seeds(4))
def test_after_a_power_cut_at_any_flush_every_entry_is_there_that_was_synced(
    folder: Path,
    tmp_path: Path,
    disk: tuple[Disk, list[Listener]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    monkeypatch.setattr(journal_module, "SEGMENT_BYTES", 900)
    chance, crashed = random.Random(seed), tmp_path / "crashed"
    device, listeners = disk
    texts: list[str] = []
    synced = tried = lost = 0
    journal = opened(folder)

    def cut_power() -> None:
        nonlocal tried, lost
        listening, listeners[:] = listeners[:], []
        for _ in range(4):
            device.crashed(chance, crashed)
            after = opened(crashed)
            published, writer = journal.last_seq, journal.journal_id
            assert synced <= after.last_seq <= len(texts)
            entries = read_after(after)
            assert [entry["seq"] for entry in entries] == list(range(1, after.last_seq + 1))
            assert [e["summary"] for e in entries] == texts[: after.last_seq]
            assert after.mark == ({"shim": {"offset": after.last_seq}} if entries else {})
            assert after.still_has(writer, published) == min(published, after.last_seq) or (
                after.last_seq == 0
            )
            after.append([note("next")], {})
            assert len(read_after(after)) == after.last_seq
            after.close()
            tried, lost = tried + 1, lost + published - len(entries)
        listeners[:] = listening

    listeners.append(cut_power)
    for number in range(40):
        durable = number % 7 == 6
        texts += [f"{number}-{one}" for one in range(chance.randrange(1, 4))]
        batch = [note(text) for text in texts[journal.last_seq :]]
        if durable:
            batch[-1]["kind"] = "failure"
        journal.append(batch, {"shim": {"offset": len(texts)}})
        assert journal.sync_with([], 10)
        if durable:
            synced = journal.last_seq
    listeners.clear()
    journal.close()
    assert tried > 300
    assert lost > 0


def test_a_journal_that_the_first_version_began_is_gone_on_with(tmp_path: Path) -> None:
    folder = unpack_first_version(tmp_path) / "node1" / "journal"
    lines = (folder / SEGMENT).read_bytes().splitlines(keepends=True)
    marks = [at for at, line in enumerate(lines) if line.startswith(b'{"mark"')]
    (folder / SEGMENT).write_bytes(b"".join(lines[: marks[-2] + 1]))  # before its last batch
    last = max(map(seq_of, lines[: marks[-2]]))
    assert 0 < last < ENTRIES["node1"]
    journal = opened(folder)
    assert (journal.last_seq, journal.ended, journal.journal_id) == (last, False, "")
    journal.append([note("here")], {})
    assert [entry["seq"] for entry in read_after(journal)] == list(range(1, last + 2))
    assert [journal.still_has("", after) for after in (20, last, last + 5)] == [20, last, last]
    journal.close()


def test_what_a_first_version_appends_to_a_journal_of_ours_is_kept(folder: Path) -> None:
    whole, _ends, writer = written(folder)
    added = b'{"seq":9,"t":1.0,"kind":"note","summary":"old"}\n{"mark":{}}\n'
    (folder / SEGMENT).write_bytes(whole + added)
    journal = opened(folder)
    assert (journal.last_seq, journal.lost_bytes) == (9, 0)
    assert journal.still_has(writer, 9) == 9
    assert [entry["seq"] for entry in read_after(journal)] == list(range(1, 10))
    journal.close()
