"""Columns of text and figures as people read them; knows no event."""

from __future__ import annotations

from collections.abc import Sequence

from distconsole.formats.figures import bytes_text, number_text, ranks_text
from distconsole.model.time_text import duration_text

__all__ = ["bytes_text", "duration_text", "number_text", "ranks_text", "table"]


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> list[str]:
    """Return ``header`` and ``rows`` as aligned lines; columns in ``right`` are right-aligned."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return [line(header), *(line(row) for row in rows)]
