"""Tails: slices that join to what was printed, cut where a person would cut."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent.contract.limits import LOG_SLICE_BYTES
from distconsole_agent.journal.tail import LogTail, ShimLines


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "rank-0.out"
    path.touch()
    return path


@pytest.fixture
def tail(log: Path) -> Iterator[LogTail]:
    tail = LogTail(str(log), 0)
    yield tail
    tail.close()


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def taken(tail: LogTail, log: Path, now: float = 0.0, *, final: bool = False) -> list[bytes]:
    whole = log.read_bytes()
    return [whole[s.offset : s.offset + s.length] for s in tail.take(now, final=final)]


def test_whole_lines_are_passed_on_at_once(tail: LogTail, log: Path) -> None:
    add(log, b"one\ntwo\nthr")
    assert taken(tail, log) == [b"one\ntwo\n"]
    add(log, b"ee\n")
    assert taken(tail, log) == [b"three\n"]
    assert taken(tail, log) == []


def test_a_line_without_an_end_waits_a_second(tail: LogTail, log: Path) -> None:
    add(log, b"Password: ")
    assert taken(tail, log, 10.0) == []
    assert taken(tail, log, 10.9) == []
    assert taken(tail, log, 11.0) == [b"Password: "]


def test_a_line_that_grows_waits_on(tail: LogTail, log: Path) -> None:
    for tenth in range(30):
        add(log, b".")
        assert taken(tail, log, tenth / 10) == []


def test_a_progress_bar_is_passed_on_by_its_returns(tail: LogTail, log: Path) -> None:
    add(log, b"\r 10%\r 20%")
    assert taken(tail, log) == [b"\r 10%\r"]


def test_a_return_is_not_parted_from_its_newline(tail: LogTail, log: Path) -> None:
    add(log, b"one\r")
    assert taken(tail, log) == []
    add(log, b"\n")
    assert taken(tail, log) == [b"one\r\n"]


def test_a_character_is_never_cut(tail: LogTail, log: Path) -> None:
    add(log, "é€😀".encode()[:-1])
    assert taken(tail, log, 0.0) == []
    assert taken(tail, log, 5.0) == ["é€".encode()]
    add(log, "😀".encode()[-1:])
    assert taken(tail, log, 5.0) == []
    assert taken(tail, log, 9.0) == ["😀".encode()]


def test_the_end_of_a_process_takes_what_is_left(tail: LogTail, log: Path) -> None:
    add(log, b"last words \xf0\x9f")
    assert taken(tail, log, final=True) == [b"last words \xf0\x9f"]


def test_long_text_is_cut_at_lines_or_at_characters(tail: LogTail, log: Path) -> None:
    add(log, b"x" * 100 + b"\n" + "€".encode() * 60_000 + b"\n" + b"y" * 200_000)
    pieces: list[bytes] = []
    while more := taken(tail, log, final=True):
        pieces += more
    assert b"".join(pieces) == log.read_bytes()
    assert all(len(piece) <= LOG_SLICE_BYTES for piece in pieces)
    for piece in pieces:
        piece.decode()


@pytest.mark.parametrize("seed", range(8))
def test_slices_join_without_a_gap(tail: LogTail, log: Path, seed: int) -> None:
    chance = random.Random(seed)
    alphabet = [b"\n", b"\r", b"\r\n", "é".encode(), "😀".encode(), b"\xff", b"word ", b"z" * 9000]
    pieces: list[bytes] = []
    now = 0.0
    for _ in range(200):
        add(log, b"".join(chance.choices(alphabet, k=chance.randrange(6))))
        now += chance.choice((0.1, 0.1, 0.1, 2.0))
        pieces += taken(tail, log, now)
    pieces += taken(tail, log, now, final=True)
    assert b"".join(pieces) == log.read_bytes()


def test_a_log_that_was_emptied_goes_on(tail: LogTail, log: Path) -> None:
    add(log, b"a long first line\n")
    taken(tail, log)
    log.write_bytes(b"")
    assert taken(tail, log) == []
    add(log, b"again\n")
    assert taken(tail, log) == [b"again\n"]


def test_a_log_is_gone_on_with_from_an_offset(log: Path) -> None:
    add(log, b"one\ntwo\n")
    tail = LogTail(str(log), 4)
    assert taken(tail, log) == [b"two\n"]
    tail.close()


def test_shim_lines_are_read_whole_and_only_once(tmp_path: Path) -> None:
    path = tmp_path / "shim.jsonl"
    lines = ShimLines(str(path))
    assert lines.read() == []
    first = json.dumps({"t_ns": 1, "event": "started"}).encode() + b"\n"
    path.write_bytes(first + b'{"t_ns": 2, "ev')
    assert lines.read() == [(len(first), {"t_ns": 1, "event": "started"})]
    assert lines.read() == []
    with path.open("ab") as file:
        file.write(b'ent": "ended"}\n')
    assert [event["event"] for _, event in lines.read()] == ["ended"]
    lines.close()


def test_nonsense_among_shim_lines_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "shim.jsonl"
    path.write_bytes(
        b"nonsense\n[1]\n{}\n"
        b'{"event": "ended"}\n{"event": "ended", "t_ns": true}\n'
        + b"x" * 600_000
        + b"\n"
        + b'{"event": "ended", "t_ns": 5}\n'
    )
    lines = ShimLines(str(path))
    assert [event["t_ns"] for _, event in lines.read()] == [5]
    lines.close()
