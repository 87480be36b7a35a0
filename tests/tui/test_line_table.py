"""The table drawn by lines, alone on a screen."""

import pytest
from rich.text import Text
from textual.app import App, ComposeResult

from distconsole.text.tables import Column
from distconsole.tui.widgets.line_table import LineTable

CELLS: list[tuple[Text | str, bool, str]] = [
    ("12345", True, "  12345"),
    ("state", False, "state  "),
    ("much too long", False, "much t…"),
    ("much too long", True, "much t…"),
    (Text("宽字", style="bold"), True, "   宽字"),
    (Text.assemble("a", ("b", "bold"), style="red"), True, "     ab"),
]


class Alone(App[None]):
    """A screen with a table of as many rows as are given."""

    def __init__(self, rows: list[str], columns: list[Column[str]]) -> None:
        super().__init__()
        self.table: LineTable[str] = LineTable(columns)
        self._rows = rows

    def compose(self) -> ComposeResult:
        yield self.table

    def on_mount(self) -> None:
        self.table.styles.height = "1fr"
        self.table.show(self._rows)

    def lines(self) -> list[str]:
        """Return the screen's lines as text."""
        return [strip.text for strip in self.screen._compositor.render_strips()]


async def test_the_scrollbar_covers_no_cell_of_a_row() -> None:
    columns: list[Column[str]] = [
        Column("name", 8, lambda row: row),
        Column("n", 1, lambda row: row[-1], need=3),
        Column("figure", 10, lambda row: row[-1] * 10, right=True),
    ]
    app = Alone([f"row {each}" for each in range(30)], columns)
    async with app.run_test(size=(21, 8)) as pilot:
        await pilot.pause()
        assert app.table.show_vertical_scrollbar
        assert app.lines()[3].split() == ["row", "2", "2222222222"]
    app = Alone(["row 0"], columns)
    async with app.run_test(size=(21, 8)) as pilot:
        await pilot.pause()
        assert app.lines()[1].split() == ["row", "0", "0", "0000000000"]


@pytest.mark.parametrize(("cell", "right", "wanted"), CELLS)
async def test_a_cell_takes_its_room_and_no_more(
    cell: Text | str, right: bool, wanted: str
) -> None:
    columns: list[Column[str]] = [
        Column("cell", 7, lambda _: cell, right=right),
        Column("next", 4, lambda _: "next"),
    ]
    app = Alone(["row"], columns)
    async with app.run_test(size=(20, 8)):
        strip = app.table.render_line(1)
        assert strip.cell_length == 20
        assert strip.text.startswith(f"{wanted} next")
