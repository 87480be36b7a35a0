"""Looks at several things at once. ``concurrent.futures`` loads logging, 0.9 MB that an agent would keep for good."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Callable


def look_at_once(
    look: Callable[[Any], Any], things: Sequence[Any], most: int | None = None
) -> list[Any]:
    """Return ``look`` of each thing in order, ``most`` of them at a time; raises the first exception."""
    found: list[Any] = [None] * len(things)
    errors: list[BaseException] = []
    waiting = deque(enumerate(things))

    def work() -> None:
        with suppress(IndexError):  # nothing waits any more
            while not errors:
                place, thing = waiting.popleft()
                try:
                    found[place] = look(thing)
                except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asks
                    errors.append(error)

    count = min(len(things), most or len(things))
    threads = [
        threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
