"""What a thread wants done on the screen's own thread. It does nothing itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message
from textual.message_pump import MessagePump


class CallOnUiThread(Message):
    """``do`` is called where the message arrives; may be posted from any thread."""

    def __init__(self, do: Callable[[], None]) -> None:
        super().__init__()
        self.do = do


def run_in_thread(pump: MessagePump, work: Callable[[], Callable[[], None]], name: str) -> None:
    """Do ``work``, which may take as long as a file system takes, in a thread, and then what it returns on the screen."""

    def worked() -> None:
        pump.post_message(CallOnUiThread(work()))

    threading.Thread(target=worked, name=name, daemon=True).start()
