"""Several things looked at at once: in order, so many at a time, and the first error is the caller's."""

from __future__ import annotations

import threading
from contextvars import ContextVar

import pytest

from distconsole_agent.probes.at_once import look_at_once

WHOSE: ContextVar[str] = ContextVar("whose", default="nobody's")


def test_answers_come_in_the_order_of_what_was_asked_and_in_the_askers_context() -> None:
    WHOSE.set("the asker's")
    found = look_at_once(lambda number: (number, WHOSE.get()), range(100), 7)
    assert found == [(number, "the asker's") for number in range(100)]
    assert look_at_once(str, []) == []


def test_so_many_are_looked_at_at_a_time() -> None:
    together = threading.Barrier(4)
    look_at_once(lambda _: together.wait(10), range(4))  # breaks where they come one by one
    now, most, lock = 0, 0, threading.Lock()

    def look(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1

    look_at_once(look, range(50), 2)
    assert most <= 2


def test_what_one_raises_is_raised_and_the_rest_is_not_begun() -> None:
    looked: list[int] = []

    def look(number: int) -> None:
        looked.append(number)
        raise OSError(f"no {number}")

    with pytest.raises(OSError, match="no 0"):
        look_at_once(look, range(50), 1)
    assert looked == [0]
