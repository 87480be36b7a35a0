"""Iterators that are gone through at the same time, on a thread each."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence

GIVEN_UP_SECONDS = 15.0
"""What jobs that nobody waits for have to clear away what they began."""


def run_at_once(
    works: Sequence[tuple[str, Iterator[str]]], give_up: Callable[[], None]
) -> Iterator[tuple[str, str]]:
    """Go through ``works`` on a thread each; yield the name of one and what it yields, as it comes.

    At the end of each it is its name and an empty text. What one raises is raised here. If the
    consumer goes away before, ``give_up`` is called, and they may clear away what they began.
    """
    news: queue.SimpleQueue[tuple[str, str] | BaseException] = queue.SimpleQueue()

    def go_through(name: str, work: Iterator[str]) -> None:
        try:
            for done in work:
                news.put((name, done))
        except BaseException as error:  # noqa: BLE001 - raised where the news are taken
            news.put(error)
        news.put((name, ""))

    threads = [
        threading.Thread(target=go_through, args=work, name=f"check {work[0]}", daemon=True)
        for work in works
    ]
    for thread in threads:
        thread.start()
    left = len(works)
    try:
        while left:
            told = news.get()
            if isinstance(told, BaseException):
                raise told
            left -= not told[1]
            yield told
    finally:
        if left:
            give_up()
            for thread in threads:
                thread.join(GIVEN_UP_SECONDS)
