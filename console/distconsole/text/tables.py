"""Columns of text and figures as people read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from rich.text import Text

    from distconsole.text.output import Output

Row = TypeVar("Row")
Other = TypeVar("Other")
EIGHTHS = " ▏▎▍▌▋▊▉█"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a table in a shell or on the screen.

    Attributes:
        width: Cells it takes on the screen.
        cell: Returns its text for a row.
        need: 0 is always shown; larger numbers go first when the screen is narrow.
        right: True for figures.
        sort: The order that a click on its heading asks for; empty for none.
        middle: Whether a long text is shortened in its middle, as its end distinguishes it.
        fill: Returns its text for a row in a number of cells: on the screen it takes the remaining room.
        heading: Returns its heading for the rows and the number of cells; ``title`` if None.
        wide: Cells it takes if there is room, before one that fills grows.
    """

    title: str
    width: int
    cell: Callable[[Row], Text | str]
    need: int = 0
    right: bool = False
    sort: str = ""
    middle: bool = False
    fill: Callable[[Row, int], Text | str] | None = None
    heading: Callable[[Sequence[Row], int], str] | None = None
    wide: int = 0

    def adapt(self, cell: Callable[[Other], Text | str]) -> Column[Other]:
        return Column(self.title, self.width, cell, self.need, self.right, self.sort)


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


def show_table(
    output: Output, header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()
) -> None:
    for line in table(header, rows, right):
        output.data(line)


def show_columns(output: Output, columns: Sequence[Column[Row]], rows: Sequence[Row]) -> None:
    right = [place for place, column in enumerate(columns) if column.right]
    cells = [[str(column.cell(row)) for column in columns] for row in rows]
    show_table(output, [column.title for column in columns], cells, right)


def shorten_middle(text: str, cells: int) -> str:
    """Return ``text`` in at most ``cells``, without its middle if it is longer: the end of a name distinguishes it."""
    if len(text) <= cells:
        return text
    tail = max(1, (cells - 1) * 2 // 3)
    return f"{text[: max(0, cells - 1 - tail)]}…{text[-tail:]}"[-cells:]


def bar_text(share: float, cells: int, *, plain: bool) -> str:
    """Return a bar of ``share`` (0 to 1) of ``cells``: to an eighth of a cell, or in number signs."""
    if plain:
        return "#" * round(share * cells)
    whole, rest = divmod(round(share * cells * 8), 8)
    return "█" * whole + (EIGHTHS[rest] if rest else "")
