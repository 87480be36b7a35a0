"""A node's journal as the console reads it, played from a script."""

from collections.abc import Callable, Iterable
from typing import Any

from distconsole.errors import NodeError
from distconsole.rpc.frames import Entries
from distconsole.rpc.wire import check_item

Step = dict[str, Any] | Entries | NodeError | None


class PlayedJournal:
    """Plays items and errors, and ends at None; behind its script there is nothing until it is closed."""

    def __init__(self, script: Iterable[Step], clock_offset: float = 0.0) -> None:
        self.clock_offset = clock_offset
        self._steps = iter(script)
        self._closed = False
        self._listener: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        self._listener = listener
        listener()

    def take(self, _timeout: float | None) -> Entries | None:
        nothing = object()
        step = nothing if self._closed else next(self._steps, nothing)
        if isinstance(step, NodeError):
            raise step
        if step is None or self._closed:
            raise StopIteration
        if step is nothing:
            return None
        entries: Entries = check_item("follow", step) if isinstance(step, dict) else step
        return entries

    def close(self) -> None:
        self._closed = True
        self._listener()
