"""Checks in a ring, written by the recorder itself, as entries."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent.journal.rings import Ring
from distconsole_agent.journal.windows import Checks
from distconsole_training import records
from distconsole_training.identity import Identity
from distconsole_training.recorder import Recorder
from distconsole_training.records import CHECK, DETAIL

ALL = records.HAS_PARAMETERS | records.HAS_STATE | records.HAS_BATCH
LAYOUT = 0xDEADBEEF


def place(rank: int = 1, world: int = 2) -> int:
    return int.from_bytes(records.PLACE.pack(rank, world, LAYOUT), "little")


class Rank:
    """A recorder, and the reader of its ring."""

    def __init__(self, folder: Path) -> None:
        self.recorder = Recorder(str(folder), Identity(1, 1, 2), 11, 22)
        self.ring = Ring(self.recorder.path)
        self.checks = Checks(self.recorder.path)

    def details(self, step: int, values: list[int]) -> int:
        rows = [values[first : first + 8] for first in range(0, len(values), 8)]
        for number, row in enumerate(rows):
            words = struct.unpack("<4Q", struct.pack("<8I", *row, *[0] * (8 - len(row))))
            self.recorder.write_words(DETAIL, step, 5, words, name=number)
        return len(rows)

    def check(self, step: int, rows: int, samples: int, *, flags: int = ALL) -> None:
        words = [2**64 - 1, 2, 3, place()]
        self.recorder.write_words(CHECK, step, 5, words, flags=flags, name=rows, samples=samples)

    def names(self, said: Any) -> None:
        path = self.recorder.path.removesuffix(records.RING_SUFFIX) + records.CHECKED_SUFFIX
        Path(path).write_text(said if isinstance(said, str) else json.dumps(said))

    def taken(self) -> list[dict[str, Any]]:
        self.ring.refresh()
        entries = [self.checks.take(1, one, lambda step: step + 100) for one in self.ring.read()]
        return [entry for entry in entries if entry is not None]


@pytest.fixture
def rank(tmp_path: Path) -> Any:
    rank = Rank(tmp_path)
    yield rank
    rank.ring.close()
    rank.recorder.close()


def test_a_check_is_one_entry_with_its_names_once(rank: Rank) -> None:
    values = list(range(2**32 - 10, 2**32))
    rank.names({"layout": LAYOUT, "names": [f"n{each}" for each in range(10)]})
    for step in (0, 5):
        rank.check(step, rank.details(step, values), 10 | 3 << 16)
    first, second = rank.taken()
    assert (first["step"], first["rank"], first["place"]) == (100, 1, [1, 2])
    assert (first["parameters"], first["state"]) == ("f" * 16, f"{2:016x}")
    assert first["details"] == "".join(f"{value:08x}" for value in values)
    assert first["bad_gradient"] == 2
    assert first["names"][9] == "n9"
    assert second["names"] is None
    assert second["details"] == first["details"]


def test_what_is_not_there_is_null(rank: Rank) -> None:
    rank.check(0, 0, 0, flags=records.SAME_EPOCH)
    (entry,) = rank.taken()
    unknown = ("parameters", "state", "batch", "details", "names", "bad_gradient")
    assert [entry[name] for name in unknown] == [None] * 6
    assert entry["same_epoch"]


def test_details_of_which_some_are_lost_are_left_out(rank: Rank) -> None:
    rank.details(0, [1] * 16)
    rank.check(5, 2, 16)
    rank.check(6, 1, 8)
    assert [entry["details"] for entry in rank.taken()] == [None, None]


@pytest.mark.parametrize(
    "said", ["", "[", "[1]", '{"names": 3}', '{"layout": 1, "names": ["a"]}', "[" * 60_000]
)
def test_names_that_are_none_are_left_out(rank: Rank, said: str) -> None:
    rank.names(said)
    rank.check(0, rank.details(0, [1]), 1)
    (entry,) = rank.taken()
    assert entry["names"] is None
    assert entry["details"] == "00000001"


def test_endless_details_and_a_pipe_for_names_are_bounded(rank: Rank) -> None:
    os.mkfifo(rank.recorder.path.removesuffix(records.RING_SUFFIX) + records.CHECKED_SUFFIX)
    rank.check(0, rank.details(0, [1] * 4000), 4000)
    (entry,) = rank.taken()
    assert entry["details"] is None
    assert entry["names"] is None


def test_records_of_words_and_of_numbers_stand_side_by_side(rank: Rank) -> None:
    rank.recorder.write(records.STEP, 0, 5, a=0.5, value=0.25)
    rank.check(0, 0, 0)
    rank.recorder.write(records.STEP, 1, 5, a=0.5, value=0.75)
    rank.ring.refresh()
    read = rank.ring.read()
    assert [record[3] for record in read] == [records.STEP, CHECK, records.STEP]
    assert [record[12] for record in read if record[3] != CHECK] == [0.25, 0.75]
    assert read[1][7] == 2**64 - 1
