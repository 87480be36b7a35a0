"""Claims about a disk that runs low while a run goes on: it is told once, and a disk that hangs holds up nobody."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from distconsole_agent.supervisor import notes
from distconsole_agent.system.loop import Loop
from distconsole_agent.system.room import Disk, DiskWatch

GIB = 1 << 30
FOLDER = "/scratch/dc/runs/digits"


class Turns:
    """A loop that goes round when it is told to."""

    def __init__(self) -> None:
        self.next: Callable[[], None] | None = None

    def call_later(self, _seconds: float, callback: Callable[[], None]) -> None:
        self.next = callback

    def turn(self) -> None:
        """Do what is due."""
        assert self.next is not None
        self.next()


class Asked:
    """A disk, and a word whenever it was asked for its room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(0, 0)
        self.go = threading.Semaphore(0)
        self.done = threading.Semaphore(0)
        monkeypatch.setattr("distconsole_agent.system.room.LOOK_SECONDS", 0.0)

    def __call__(self, _folder: str) -> Disk:
        self.done.release()
        self.go.acquire()
        return self.disk

    def see(self, free: int, total: int) -> None:
        """Have it be seen that so much is free."""
        self.disk = Disk(free, total)
        self.go.release()
        self.done.acquire()


def watched(asked: Asked) -> tuple[DiskWatch, Turns, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    loop = Turns()

    def low(disk: Disk) -> None:
        told.append(notes.disk_low("node1", FOLDER, disk))

    watch = DiskWatch(cast("Loop", loop), FOLDER, low, asked)
    watch.begin()
    asked.done.acquire()
    return watch, loop, told


def let_go(watch: DiskWatch, asked: Asked) -> None:
    watch.end()
    asked.go.release()


def test_a_low_disk_is_told_once_until_it_has_recovered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch)
    watch, loop, told = watched(asked)
    for free, times in ((11, 0), (9, 1), (8, 1), (11, 1), (9, 1), (13, 1), (9, 2)):
        asked.see(free * GIB // 10, 10 * GIB)
        loop.turn()
        assert len(told) == times, free
    let_go(watch, asked)
    note = told[0]
    assert (note.check, note.severity) == ("run.disk_low", "warn")
    assert "node1" in note.summary
    assert FOLDER in note.summary
    assert f"{9 * GIB // 10} of {10 * GIB} bytes" in note.summary
    assert note.hint


def test_a_disk_that_hangs_delays_nothing_and_a_tenth_of_a_large_one_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked(monkeypatch)
    watch, loop, told = watched(asked)
    loop.turn()
    loop.turn()
    assert told == []
    for free, times in ((50, 0), (3, 1)):
        asked.see(free * GIB, 1000 * GIB)
        loop.turn()
        assert len(told) == times
    let_go(watch, asked)
