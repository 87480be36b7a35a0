"""Streams a run's journal to one connection, log text filled in.

The journal is read at the pace at which the socket takes it. Where a flood makes what is sent late, its
text is left out, so that steps and states are in time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from distconsole_agent.contract.limits import ITEM_BYTES, LAST_UNCUT_BYTES, LATE_SECONDS
from distconsole_agent.contract.protocol import MAX_ENTRIES_PER_ITEM
from distconsole_agent.journal.journal import Journal
from distconsole_agent.journal.lines import body_of
from distconsole_agent.journal.reader import Reader
from distconsole_agent.server.connection import Asked

_LOG = b'"kind":"log"'
_KIND_WITHIN = 96
"""``kind`` follows ``seq`` and ``t``; quotes inside a text are escaped, so this cannot mistake one."""


def follow(
    journal: Journal,
    folder: str,
    after: int,
    asker: Asked,
    end: dict[str, Any] | None = None,
    wall: Callable[[], float] = time.time,
) -> int:
    """Send the entries after ``after`` until ``end`` was sent or it is cancelled; return the last number.

    Args:
        asker: Its ``send_entries`` blocks while the socket is full; ``journal.wake`` has it asked
            whether it is cancelled.
        end: The last entry, from the run's summary: what is told of a run whose journal has lost it.
        wall: UNIX seconds, by which entries are late.

    Raises OSError when the journal cannot be read or the connection is gone.
    """
    reader = Reader(journal.folder, after)
    past = journal.last_seq

    def is_late(entry: dict[str, Any]) -> bool:
        # Who asks for what is past waits for it; and behind the end nothing can be late.
        live = entry["seq"] > past and not journal.ended
        return live and wall() - entry["t"] > LATE_SECONDS

    texts = LogTexts(os.path.join(folder, "logs"), is_late)
    told = ""
    try:
        while not asker.cancelled.is_set():
            if journal.trouble != told:
                told = journal.trouble
                asker.send_item({"entries": [], "trouble": told})
            # Asked before reading: what is told of later is there later.
            complete, there = journal.ended, journal.last_seq
            lines = reader.read()
            if lines:
                _send_in_items(lines, texts, asker, reader.journal_id)
            elif complete:
                return _send_end(end, reader, asker)
            elif not journal.wait(max(reader.last, there), asker.cancelled.is_set, told):
                break
        return reader.last
    finally:
        reader.close()
        texts.close()


def _send_end(end: dict[str, Any] | None, reader: Reader, asker: Asked) -> int:
    """Send the last entry where the journal has lost it; return the number of the last one."""
    if end is None or end["seq"] <= reader.last:
        return reader.last
    writer = end.pop("journal", reader.journal_id)
    asker.send_entries([json.dumps(end, separators=(",", ":")).encode("ascii")], writer)
    return int(end["seq"])


def _send_in_items(lines: list[bytes], texts: LogTexts, asker: Asked, journal_id: str) -> None:
    item: list[bytes] = []
    size = 0
    for line in lines:
        entry = texts.fill(line) if _LOG in line[:_KIND_WITHIN] else body_of(line)
        if item and (len(item) >= MAX_ENTRIES_PER_ITEM or size + len(entry) > ITEM_BYTES):
            asker.send_entries(item, journal_id)
            if asker.cancelled.is_set():
                return
            item, size = [], 0
        item.append(entry)
        size += len(entry)
    asker.send_entries(item, journal_id)


class LogTexts:
    """Fills the text into log entries, unless it ``is_late`` and more is to come."""

    def __init__(
        self, folder: str, is_late: Callable[[dict[str, Any]], bool] = lambda _entry: False
    ) -> None:
        self._folder = folder
        self._is_late = is_late
        self._fds: dict[str, int] = {}
        self._left_out: dict[str, tuple[int, int]] = {}
        """Log -> the first byte that was left out, and how many lines since."""

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def fill(self, line: bytes) -> bytes:
        """Return a log entry with its text in place of the reference."""
        entry: dict[str, Any] = json.loads(body_of(line))
        length, name = entry.pop("length"), entry.pop("file")
        text = self._read(name, entry["offset"], length)
        if self._is_late(entry) and self._has_more(name, entry["offset"] + length):
            start, lines = self._left_out.get(name, (entry["offset"], 0))
            self._left_out[name] = (start, lines + text.count("\n"))
            text = ""
        elif name in self._left_out:
            start, lines = self._left_out.pop(name)
            text = (
                f"[distconsole: {lines:,} lines are not shown here: the way to this console is too slow for them; they "
                f"are in {self._folder}/{name}, bytes {start} to {entry['offset']}]\n{text}"
            )
        entry["text"] = text
        return json.dumps(entry, separators=(",", ":")).encode("ascii")

    def _has_more(self, name: str, end: int) -> bool:
        size = os.fstat(self._fds[name]).st_size if name in self._fds else 0
        return bool(size - end > LAST_UNCUT_BYTES)

    def _read(self, name: str, offset: int, length: int) -> str:
        """Return what the log says there; empty where somebody has cut the file short."""
        try:
            if name not in self._fds:
                path = os.path.join(self._folder, os.path.basename(name))
                if len(self._fds) >= 64:
                    os.close(self._fds.pop(next(iter(self._fds))))
                self._fds[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            return os.pread(self._fds[name], length, offset).decode("utf-8", "replace")
        except OSError:
            return ""
