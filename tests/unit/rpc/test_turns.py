"""Many threads compute one at a time, each gets its own, and none is forgotten."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from distconsole.rpc.turns import MOST_FOR_OTHERS, Turns


def test_every_thread_gets_what_it_asked_for_and_no_two_compute_at_once() -> None:
    turns, inside, most = Turns(), 0, 0

    def compute(number: int) -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1
        return number * number

    def ask(first: int) -> list[int]:
        return [
            turns.take(lambda number=number: compute(number))  # type: ignore[misc]
            for number in range(first, first + 500)
        ]

    firsts = range(0, 16_000, 500)
    with ThreadPoolExecutor(len(firsts)) as pool:
        found = [number for each in pool.map(ask, firsts) for number in each]
    assert found == [number * number for number in range(16_000)]
    assert most == 1


def test_what_is_raised_is_raised_where_it_was_asked_for() -> None:
    turns, go, begun = Turns(), threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        go.wait(30)

    count = 3 * MOST_FOR_OTHERS
    with ThreadPoolExecutor(count + 1) as pool:
        held = pool.submit(turns.take, hold)
        begun.wait(30)
        asked = [pool.submit(turns.take, lambda: 1 // 0) for _ in range(count)]
        while len(turns._waiting) < count:
            threading.Event().wait(0.001)
        go.set()
        held.result(30)
        for each in asked:
            with pytest.raises(ZeroDivisionError):
                each.result(30)
    assert turns.take(lambda: 7) == 7
