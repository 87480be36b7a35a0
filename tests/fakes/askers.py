"""Who asked for a stream, without a connection: what would be sent is handed to a test."""

import threading
from collections.abc import Callable
from typing import Any

from distconsole_agent.server.connection import PendingRequest


class Asker(PendingRequest):
    """Takes entries, and items without entries."""

    def __init__(
        self,
        send_entries: Callable[[list[bytes], str], None] = lambda _entries, _writer: None,
        send_item: Callable[[dict[str, Any]], None] = lambda _item: None,
    ) -> None:
        self.cancelled = threading.Event()
        self._send_entries = send_entries
        self._send_item = send_item

    def send_item(self, item: dict[str, Any]) -> None:
        self._send_item(item)

    def send_entries(self, entries: list[bytes], journal_id: str) -> None:
        self._send_entries(entries, journal_id)
