"""The ring reader: every record once, what is lost is counted, and nonsense harms nobody."""

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.journal.rings import Record, Ring, all_meet
from distconsole_training import records
from fakes.ring_writer import RingWriter
from suite.seeds import seeds


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RingWriter]:
    writer = RingWriter(tmp_path, rank=2, capacity=64)
    yield writer
    writer.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ring(writer: RingWriter, clock: Clock) -> Iterator[Ring]:
    ring = Ring(str(writer.path), clock)
    yield ring
    ring.close()


def read_all(ring: Ring, *, final: bool = False) -> list[Record]:
    ring.refresh()
    found: list[Record] = []
    while taken := ring.read(final=final):
        found += taken
    return found


def steps(found: list[Record]) -> list[int]:
    return [record[1] for record in found]


def test_the_header_says_whose_it_is(writer: RingWriter, ring: Ring) -> None:
    assert (ring.header.pid, ring.header.rank) == (writer.pid, 2)
    assert not ring.header.finished
    writer.finish()
    assert ring.refresh().finished


def test_records_are_read_once_also_over_the_rings_end(writer: RingWriter, ring: Ring) -> None:
    seen: list[int] = []
    for number in range(500):
        writer.step(number)
        if number % 40 == 0:
            seen += steps(read_all(ring))
            assert read_all(ring) == []
    seen += steps(read_all(ring))
    assert seen == list(range(500))
    assert ring.lost == 0


def test_what_was_overwritten_is_counted(writer: RingWriter, ring: Ring) -> None:
    for number in range(200):
        writer.step(number)
    seen = steps(read_all(ring))
    assert seen == list(range(200 - len(seen), 200))
    assert ring.lost == 200 - len(seen)
    # The slot that may be written next is not believed.
    assert len(seen) == 63


@pytest.mark.parametrize("seed", seeds(5))
def test_every_record_is_read_or_counted(writer: RingWriter, ring: Ring, seed: int) -> None:
    chance = random.Random(seed)
    seen: list[int] = []
    written = 0
    for _ in range(100):
        for _ in range(chance.randrange(100)):
            writer.step(written)
            written += 1
        seen += steps(read_all(ring))
    assert len(seen) + ring.lost == written
    assert seen == sorted(set(seen))


def test_names_are_read_as_they_come(writer: RingWriter, ring: Ring) -> None:
    writer.report("accuracy", 0, 0.5)
    ring.refresh()
    assert ring.names() == ["accuracy"]
    writer.report("lr" * 24, 0, 0.1)
    ring.refresh()
    assert ring.names() == ["accuracy", "lr" * 24]


@pytest.mark.parametrize("comes", [True, False])
def test_a_record_that_is_late_is_waited_for_and_one_that_never_comes_is_lost(
    writer: RingWriter, ring: Ring, clock: Clock, comes: bool
) -> None:
    for number in range(3):
        writer.step(number)
    hole = hide(writer, 1)
    assert steps(read_all(ring)) == [0]
    clock.now = 1.0
    assert read_all(ring) == []
    if comes:
        show(writer, 1, hole)
    clock.now = 1.0 if comes else 3.0
    assert steps(read_all(ring)) == ([1, 2] if comes else [2])
    assert ring.lost == (0 if comes else 1)


def test_a_dead_process_is_not_waited_for(writer: RingWriter, ring: Ring) -> None:
    for number in range(4):
        writer.step(number)
    hide(writer, 1)
    # Two threads: the one that recorded first announced last.
    writer.set_written(3)
    assert steps(read_all(ring, final=True)) == [0, 2, 3]
    assert ring.lost == 1


def test_looking_back_moves_nothing(writer: RingWriter, ring: Ring) -> None:
    for number in range(30):
        writer.step(number)
    read_all(ring)
    assert steps(ring.before(10)) == list(range(20, 30))
    assert ring.index == 30
    assert ring.lost == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:50],
        lambda data: b"NOTARING" + data[8:],
        lambda data: data[:8] + struct.pack("<I", 32) + data[12:],
        lambda data: data[:12] + struct.pack("<I", 0) + data[16:],
        lambda data: data[:12] + struct.pack("<I", 1 << 31) + data[16:],
        lambda data: data[:40] + struct.pack("<q", -5) + data[48:],
    ],
)
def test_what_is_no_ring_is_refused(tmp_path: Path, writer: RingWriter, damage: object) -> None:
    assert callable(damage)
    path = tmp_path / "bad.ring"
    path.write_bytes(damage(writer.path.read_bytes()))
    with pytest.raises(ValueError, match="ring"):
        Ring(str(path))


def test_a_link_is_not_followed_nor_a_pipe_awaited(tmp_path: Path, writer: RingWriter) -> None:
    (tmp_path / "link.ring").symlink_to(writer.path)
    os.mkfifo(tmp_path / "pipe.ring")
    for name, why in (("link", "symbolic"), ("pipe", "seek")):
        with pytest.raises(OSError, match=why):
            Ring(str(tmp_path / f"{name}.ring"))


def test_a_ring_cut_short_under_us_yields_nothing(writer: RingWriter, ring: Ring) -> None:
    writer.step(0)
    writer.path.write_bytes(writer.path.read_bytes()[:4100])
    ring.refresh()
    assert ring.read() == []
    writer.path.write_bytes(b"")
    ring.refresh()
    assert ring.read() == []


def test_moments_are_read_as_how_long_each_part_took(writer: RingWriter, ring: Ring) -> None:
    """Also over the turn of their 32 bits, and in a ring of a job that began before an update."""
    ended = 5 << 32
    writer.step(0)
    head = 1, 0, ended, records.TIMES, 0, 0, 7
    moments = [(ended - ago) & 0xFFFFFFFF for ago in (900, 800, 600, 500, 200, 100)]
    show(writer, 0, records.MOMENTS.pack(*head, *moments, 0.25))
    (record,) = read_all(ring)
    assert record[:7] == (1, 0, ended, records.STEP, 0, 0, 7)
    assert [round(part * 1e9) for part in record[7:12]] == [900, 200, 100, 300, 100]
    assert record[12] == 0.25
    with writer.path.open("r+b") as file:
        file.write(records.OLDER_MAGIC)
    assert ring.refresh().magic == records.OLDER_MAGIC


def hide(writer: RingWriter, index: int) -> bytes:
    """Take a record out of the file, and return it."""
    at = records.RECORDS_OFFSET + index * records.RECORD.size
    with writer.path.open("r+b") as file:
        file.seek(at)
        record = file.read(records.RECORD.size)
        file.seek(at)
        file.write(bytes(records.RECORD.size))
    return record


def show(writer: RingWriter, index: int, record: bytes) -> None:
    with writer.path.open("r+b") as file:
        file.seek(records.RECORDS_OFFSET + index * records.RECORD.size)
        file.write(record)


def test_ranks_meet_once_all_have_asked_and_until_one_has_its_group(tmp_path: Path) -> None:
    """Rings of an earlier attempt, and of processes that a rank has started, say nothing of it."""
    of_before = RingWriter(tmp_path, 0, pid=1, attempt=1)
    child = RingWriter(tmp_path, 0, pid=2, attempt=2, flags=records.HEADER_CHILD)
    first, second = (RingWriter(tmp_path, rank, pid=rank + 3, attempt=2) for rank in (0, 1))
    told = []
    for writer, phase in (
        (of_before, "first_step"),
        (child, "import_torch"),
        (first, "rendezvous"),
        (second, "rendezvous"),
        (second, "init_process_group"),
    ):
        writer.put(records.PHASE, name=records.PHASES.index(phase))
        told.append(all_meet(str(tmp_path), 2))
    assert told == [False, False, False, True, None]
    for writer in (of_before, child, first, second):
        writer.close()
