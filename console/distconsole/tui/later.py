"""Messages that reach the screen from any thread or widget: call this here, run this line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from textual.message import Message


class CallOnUiThread(Message):
    """``do`` is called where the message arrives; may be posted from any thread."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__()
        self.do = do


class RunLine(Message):
    """A view wants ``line`` to be run, as if it was typed; ``quiet`` leaves it out of the transcript."""

    def __init__(self, line: str, *, quiet: bool = True) -> None:
        super().__init__()
        self.line = line
        self.quiet = quiet


class Receiver(Protocol):
    def post_message(self, message: Message, /) -> bool:
        """Take one, from any thread."""


def run_in_thread(receiver: Receiver, work: Callable[[], Callable[[], None]], name: str) -> None:
    """Do ``work``, which may take as long as a file system takes, in a thread, and then what it returns on the screen."""

    def worked() -> None:
        receiver.post_message(CallOnUiThread(work()))

    threading.Thread(target=worked, name=name, daemon=True).start()
