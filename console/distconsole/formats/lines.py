"""A run as lines of text: JSON lines, and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import msgspec

from distconsole.formats.tables import Row, Table
from distconsole.model.run_events import RunEvents

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""With these a spreadsheet takes a cell's text for a formula."""


class Lines:
    """Events of a run in order, as lines without their ends."""

    def beginning(self) -> Iterator[str]:
        """Yield what stands before the first event."""
        return iter(())

    def of(self, event: RunEvents) -> Iterator[str]:
        """Yield what an event says."""
        raise NotImplementedError

    def ending(self) -> Iterator[str]:
        """Yield what is known only after the last event."""
        return iter(())


class JsonLines(Lines):
    """Every event as ``run --json`` prints it."""

    def of(self, event: RunEvents) -> Iterator[str]:
        """Yield one JSON object."""
        yield msgspec.json.encode(event).decode()


class CsvLines(Lines):
    """One table as RFC 4180 has it; text that a spreadsheet would compute is led by an apostrophe."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._buffer = io.StringIO()
        self._writer = csv.writer(self._buffer, lineterminator="")

    def beginning(self) -> Iterator[str]:
        """Yield the names of the columns."""
        yield self._line(self._table.columns)

    def of(self, event: RunEvents) -> Iterator[str]:
        """Yield the rows of an event."""
        if isinstance(event, self._table.kinds):
            yield from map(self._line, self._table.rows(event))

    def ending(self) -> Iterator[str]:
        """Yield the rows that the end of the run makes."""
        yield from map(self._line, self._table.ending())

    def _line(self, row: Row) -> str:
        self._buffer.seek(0)
        self._buffer.truncate()
        self._writer.writerow([_plain(cell) if type(cell) is str else cell for cell in row])
        return self._buffer.getvalue()


def _plain(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text
