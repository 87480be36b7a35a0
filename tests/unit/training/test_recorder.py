"""The ring as its reader finds it."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.journal.rings import Ring
from distconsole_training import guard, records
from distconsole_training.identity import Identity
from distconsole_training.recorder import Recorder

_made: list[Recorder] = []


@pytest.fixture(autouse=True)
def _rings_are_closed() -> Iterator[None]:
    yield
    while _made:
        _made.pop().close()


@pytest.fixture(autouse=True)
def _nobody_is_told_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole_training.recorder.tally", guard.Tally())


def recorder(folder: Path, capacity: int = 16) -> tuple[Recorder, Ring]:
    made = Recorder(str(folder), Identity(2, 1, 4), 11, 22, capacity)
    _made.append(made)
    return made, Ring(made.path)


def test_a_reader_finds_what_was_written(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path)
    writer.phase("import_torch", 5)
    writer.write(records.STEP, 3, 7, records.MICRO, 0, 32, 0.5, 0.25, 0.125, 0.0, 1.0, 2.5)
    writer.metric("accuracy", 3, 0.75, 32)
    header = ring.refresh()
    phase, step, metric = ring.read()
    names = ring.names()
    ring.close()
    assert (header.rank, header.local_rank, header.world_size) == (2, 1, 4)
    assert (header.pid, header.started_time_ns, header.started_monotonic_ns) == (
        os.getpid(),
        22,
        11,
    )
    assert phase[1:6] == (0, 5, records.PHASE, 0, 1)
    assert math.isnan(phase[-1])
    assert step == (2, 3, 7, records.STEP, records.MICRO, 0, 32, 0.5, 0.25, 0.125, 0.0, 1.0, 2.5)
    assert (names[metric[5]], metric[1], metric[6], metric[-1]) == ("accuracy", 3, 32, 0.75)


def test_the_oldest_records_are_overwritten(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path, capacity=8)
    for step in range(20):
        writer.write(records.STEP, step, step)
    ring.refresh()
    steps = [record[1] for _ in range(3) for record in ring.read()]
    ring.close()
    assert steps == list(range(20 - len(steps), 20))
    assert len(steps) >= 7


def test_a_ring_is_there_with_its_header_or_not_at_all(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path)
    ring.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{os.getpid()}-22.ring"]
    assert Path(writer.path).stat().st_mode & 0o777 == 0o600
    assert Path(writer.path).stat().st_blocks * 512 >= records.RECORDS_OFFSET + 16 * 64


def test_no_room_is_an_error_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        recorder(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_names_beyond_the_table_are_not_stored(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path, capacity=256)
    for index in range(records.MAX_NAMES + 5):
        writer.metric(f"metric {index}", 0, 1.0, 0)
    writer.metric("ü" * 100, 0, 1.0, 0)
    writer.metric("metric 3", 1, 2.0, 0)
    header = ring.refresh()
    rows = ring.read()
    ring.close()
    assert header.names_used == records.MAX_NAMES == len(rows) - 1
    assert rows[-1][5] == 3


def test_identity_and_the_end_are_live(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path)
    writer.identify(Identity(0, 0, 2))
    writer.finish()
    header = ring.refresh()
    ring.close()
    assert (header.rank, header.world_size, header.finished) == (0, 2, True)


def test_impossible_numbers_of_samples_are_unknown(tmp_path: Path) -> None:
    writer, ring = recorder(tmp_path)
    for samples in (-1, 1 << 32, 7):
        writer.write(records.STEP, 0, 0, samples=samples)
    ring.refresh()
    assert [record[6] for record in ring.read()] == [0, 0, 7]
    ring.close()
