"""Output gathered into few writes: in order, soon, bounded, and never stuck on who left."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from distconsole.cli.streams import MAX_HELD_CHARS, Streams


@contextmanager
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    read, write = os.pipe()
    with os.fdopen(read, "r") as reader, os.fdopen(write, "w") as writer:
        yield reader, writer


@contextmanager
def devnull() -> Iterator[TextIO]:
    with Path(os.devnull).open("w") as null:
        yield null


def test_a_line_comes_while_nothing_else_is_printed() -> None:
    with pipe() as (reader, writer), devnull() as null:
        streams = Streams(writer, null)
        for number in range(3):
            streams.data(f"line {number}")
            assert reader.readline() == f"line {number}\n"
        streams.close()


def test_both_streams_keep_one_order(tmp_path: Path) -> None:
    with (tmp_path / "both").open("a") as out, (tmp_path / "both").open("a") as err:
        streams = Streams(out, err)
        for number in range(1000):
            (streams.say if number % 3 else streams.data)(str(number))
        streams.close()
        streams.data("after the end")
        streams.close()
    lines = (tmp_path / "both").read_text().splitlines()
    assert lines == [*map(str, range(1000)), "after the end"]


def test_a_reader_that_is_slow_holds_up_who_prints() -> None:
    with pipe() as (reader, writer), devnull() as null:
        streams = Streams(writer, null)
        printed = 0

        def print_much() -> None:
            nonlocal printed
            for _ in range(4 * MAX_HELD_CHARS // 1000):
                streams.data("x" * 1000)
                printed += 1

        printer = threading.Thread(target=print_much)
        printer.start()
        assert reader.readline() == "x" * 1000 + "\n"
        assert stands_still(lambda: printed) < 3 * MAX_HELD_CHARS // 1000
        left = 4 * MAX_HELD_CHARS // 1000 - 1
        assert [len(reader.readline()) for _ in range(left)] == [1001] * left
        printer.join()
        streams.close()


def stands_still(value: object) -> int:
    """Wait until a growing number does not grow; return it."""
    assert callable(value)
    deadline, seen = time.monotonic() + 10, -1
    while time.monotonic() < deadline:
        now: int = value()
        if now == seen:
            return now
        seen = now
        time.sleep(0.2)
    raise AssertionError(f"still growing: {seen}")


def test_a_reader_that_left_stops_nothing() -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as writer, devnull() as null:
        os.close(read)
        streams = Streams(writer, null)
        for number in range(100):
            streams.data(str(number))
        streams.close()
        streams.data("more")
        streams.close()


def test_a_full_disk_is_told() -> None:
    with Path("/dev/full").open("w") as full, devnull() as null:
        streams = Streams(full, null)
        streams.data("lost")
        with pytest.raises(OSError, match="No space left"):
            streams.close()
        with pytest.raises(OSError, match="No space left"):
            full.flush()
        os.dup2(null.fileno(), full.fileno())
