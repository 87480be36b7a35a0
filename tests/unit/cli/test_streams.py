"""Output gathered into few writes: in order, soon, bounded, and never stuck on who left."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import GEN_CLOSED, getgeneratorstate
from itertools import count
from pathlib import Path
from typing import TextIO

import pytest

from distconsole.cli import main
from distconsole.cli.streams import MAX_HELD_CHARS, Streams
from distconsole.model.requests import Attach
from distconsole.model.run_events import LogLine

INTERRUPTED = """
import signal, sys
from distconsole.cli import main
from distconsole.model.requests import Top
def perform(*_):
    signal.raise_signal(signal.SIGINT)
    yield
main.perform = perform
sys.exit(main.perform_headless(Top(once=True)))
"""

INTERRUPTED_IN_A_CALLBACK = INTERRUPTED.replace(
    "signal.raise_signal(signal.SIGINT)",
    "import threading, weakref; given = threading.Event()\n"
    "    kept = weakref.ref(given, lambda _: signal.raise_signal(signal.SIGINT)); del given\n"
    "    threading.Event().wait(60)",
)

INTERRUPTED_EARLY = """
import signal, sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "distconsole.cli.main":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["distconsole", "top", "--once"]
from distconsole.__main__ import main
main()
"""


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


def stands_still(value: Callable[[], int]) -> int:
    """Wait until a growing number does not grow; return it."""
    deadline, seen = time.monotonic() + 10, -1
    while time.monotonic() < deadline:
        now = value()
        if now == seen:
            return now
        seen = now
        time.sleep(0.2)
    raise AssertionError(f"still growing: {seen}")


def test_a_reader_that_left_stops_nothing(tmp_path: Path) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w") as writer, (tmp_path / "err").open("w") as err:
        os.close(read)
        streams = Streams(writer, err)
        for number in range(100):
            streams.data(str(number))
            streams.say(f"said {number}")
        streams.close()
        streams.data("more")
        streams.say("said at the end")
        streams.close()
    said = [f"said {number}" for number in range(100)]
    assert (tmp_path / "err").read_text().splitlines() == [*said, "said at the end"]


def test_a_full_disk_closes_what_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    line = LogLine(t=0.0, run="train-1", host="node1", stream="stdout", line="step")
    events = (line for _ in count())
    monkeypatch.setattr(main, "perform", lambda *_: events)
    with Path("/dev/full").open("w") as full, devnull() as null:
        assert main.perform_headless(Attach(run="train-1"), Streams(full, null)) == 1
    assert getgeneratorstate(events) == GEN_CLOSED


@pytest.mark.parametrize("words", [["check", "--explain", "net.mtu"], ["--help"]])
def test_a_full_disk_is_one_line_and_an_exit_code(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "distconsole", *words],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    first, hint = done.stderr.splitlines()
    assert first == "error: stdout cannot be written: No space left on device"
    assert hint.startswith("hint: ")


def test_an_error_that_cannot_be_told_keeps_its_exit_code(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "distconsole", "show", "nothing"],
            stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("program", [INTERRUPTED, INTERRUPTED_IN_A_CALLBACK, INTERRUPTED_EARLY])
def test_who_interrupts_is_answered(program: str) -> None:
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as ended:
        assert ended.communicate(timeout=60)[1] == "interrupted\n"
    assert ended.returncode == 130


def test_a_status_tells_its_age_or_counts_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distconsole.cli.streams.AGE_SECONDS", 0.01)
    monkeypatch.setenv("TERM", "xterm")
    now, told = 100.0, b""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "rb", buffering=0) as seen, os.fdopen(theirs, "w") as terminal:
        streams = Streams(terminal, terminal, clock=lambda: now)
        streams.status("healthy: 1,900 samples/s", old_after=5.0)
        now = 112.0
        while b"12 s ago: healthy: 1,900 samples/s" not in told:
            told += seen.read(4096)
        streams.status("checking local facts", seconds=2.0)
        now = 112.1
        streams.status("checking coll.init", seconds=2.1)  # too soon to be drawn
        now = 120.1
        while b"checking coll.init, 10 s" not in told:
            told += seen.read(4096)
        streams.close()
    assert told.index(b"healthy: 1,900 samples/s") < told.index(b"12 s ago: ")
    assert b"checking local facts, 2 s" in told
