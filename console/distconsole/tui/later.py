"""Messages that reach the screen from any thread or widget: call this here, run this line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from textual.message import Message


@dataclass
class CallOnUiThread(Message):
    """Calls ``do`` in the receiver's thread; may be posted from any thread."""

    do: Callable[[], None]


@dataclass
class RunLine(Message):
    """Asks to run ``line`` as if typed, but left out of the transcript."""

    line: str


def run_in_thread(
    post: Callable[[Message], object], work: Callable[[], Callable[[], None]], name: str
) -> None:
    """Run ``work``, which may block on a file system, in a thread, then its result on the UI thread."""

    def worked() -> None:
        post(CallOnUiThread(work()))

    threading.Thread(target=worked, name=name, daemon=True).start()
