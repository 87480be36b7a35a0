"""The items of one streaming request on their way to one consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, Self, TypeAlias

from distconsole.errors import LinkLostError, NodeError
from distconsole.rpc.frames import Entries

MAX_ITEMS = 256
MAX_BYTES = 8 * 1024 * 1024
"""Items of one stream for its consumer before it is paused; the second counts bytes on the wire."""

MAX_ALL_BYTES = 8 * 1024 * 1024
FEW_ITEMS = 4
"""If all streams together hold more, one of ``follow`` is paused with this many items: a thousand of 8 MiB were no bound."""

Items = dict[str, Any]
Item: TypeAlias = Items | Entries
"""Items of a journal are ``Entries``."""


class _Held:
    """Bytes on the wire of the items that all streams of this program hold."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self.bytes += size


_held = _Held()


class _Cancel(Protocol):
    def __call__(self, stream: ItemStream, *, forget: bool) -> None: ...


class ItemStream(Iterator[Any]):
    """An iterator over checked items, for one consumer; closing cancels; ``result`` comes at the end."""

    def __init__(
        self, op: str, arguments: Items, begin: Callable[[ItemStream], None], cancel: _Cancel
    ) -> None:
        self.op = op
        self.arguments = arguments
        self.number = 0
        self.result: Items | None = None
        self._begin = begin
        self._cancel = cancel
        self._changed = threading.Condition()
        self._items: deque[tuple[Item, int]] = deque()
        self._bytes = 0
        self._paused = False
        self._stopped = False
        self._discarded = False
        self._done = False
        self._closed = False
        self._error: NodeError | None = None
        self._listener: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called, on any thread, when there may be something to take or the end, and once now."""
        self._listener = listener
        listener()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        item = self.take(None)
        assert item is not None
        return item

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, timeout: float | None) -> Any:
        """Return the next item, or None if there is none within ``timeout`` seconds.

        Raises StopIteration at the end, when ``result`` is set, and NodeError if the request or the link
        failed, after the items before it.
        """
        while True:
            with self._changed:
                if not self._changed.wait_for(
                    lambda: self._items or self._stopped or self._is_over, timeout
                ):
                    return None
                if self._items:
                    item, size = self._items.popleft()
                    self._bytes -= size
                    _held.add(-size)
                    return item
                if self._error is not None:
                    raise self._error
                if self._done or self._closed:
                    raise StopIteration
                self._paused = self._stopped = self._discarded = False
            self._begin_again()

    def close(self) -> None:
        """Cancel the request and wake the consumer; may be called from any thread, repeatedly."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            over = self._done or self._error is not None
            self._items.clear()
            _held.add(-self._bytes)
            self._bytes = 0
            self._changed.notify_all()
        self._listener()
        if not over:
            self._forget()

    @property
    def wants_items(self) -> bool:
        """True if an item would be kept (for the reader)."""
        return not (self._paused or self._closed)

    def discard(self) -> None:
        """Note that an item was passed over; the stream will be asked for again (for the reader)."""
        self._discarded = True

    def offer(self, item: Item, size: int) -> None:
        """Add an item of ``size`` bytes; never waits (for the reader)."""
        can_resume = self.op == "follow"
        with self._changed:
            if self._closed:
                return
            self._items.append((item, size))
            self._bytes += size
            _held.add(size)
            # ``follow`` goes on after the last entry taken, with its writer.
            if isinstance(item, Entries) and item.entries:
                last = {"after": item.entries[-1].seq, "journal": item.journal}
                self.arguments = {**self.arguments, **last}
            elif isinstance(item, Entries) and item.after is not None:
                self.arguments = {**self.arguments, "after": item.after}
            full = len(self._items) > MAX_ITEMS or self._bytes > MAX_BYTES
            full = full or (len(self._items) > FEW_ITEMS and _held.bytes > MAX_ALL_BYTES)
            if full and can_resume:
                self._paused = True
            elif full:
                oldest = self._items.popleft()[1]
                self._bytes -= oldest
                _held.add(-oldest)
            self._changed.notify_all()
        self._listener()
        if full and can_resume:
            self._cancel(self, forget=False)

    def answered(self, result: Items) -> None:
        with self._changed:
            if self._paused and (self._discarded or "cancelled" in result):
                self._stopped = True
            else:
                self._done, self.result = True, result
            self._changed.notify_all()
        self._listener()

    def fail(self, error: NodeError) -> None:
        """Note that no more will come (for the reader)."""
        with self._changed:
            if not self._done:
                self._error = error
            self._changed.notify_all()
        self._listener()

    def _begin_again(self) -> None:
        self._begin(self)
        if self._closed:  # meanwhile, so that the request before this one was cancelled
            self._forget()

    def _forget(self) -> None:
        with suppress(LinkLostError):  # with the link the request has ended too
            self._cancel(self, forget=True)

    @property
    def _is_over(self) -> bool:
        return self._done or self._closed or self._error is not None
