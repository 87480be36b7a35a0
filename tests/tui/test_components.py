"""The components that views are composed of, alone on a screen."""

import math

import pytest
from textual.app import App, ComposeResult
from textual.containers import Vertical
from textual.widgets import Input

from distconsole.text.tables import Column
from distconsole.tui.theme.themes import LOOKS, PICTURES
from distconsole.tui.widgets.bars import level_bar, parts_bar, spark_text
from distconsole.tui.widgets.curves import Curve, PlotData
from distconsole.tui.widgets.line_table import LineTable
from distconsole.tui.widgets.lines import whole_parts
from distconsole.tui.widgets.panel import RULED_TO, Panel
from distconsole.tui.widgets.plots import Plot, Plots, spread
from distconsole.tui.widgets.tiles import TileData, Tiles
from fakes.stage import until

XS = [float(second) for second in range(60)]
RATE = [1000.0] * 30 + [500.0] * 30


class Alone(App[None]):
    """A screen with one of each, in a theme of ours."""

    CSS = "Screen { layout: vertical; }"
    HORIZONTAL_BREAKPOINTS = [(0, "-ruled"), (RULED_TO + 1, "-framed")]  # noqa: RUF012

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {name: row[0] for name, row in PICTURES.items()}

    def compose(self) -> ComposeResult:
        yield Tiles(3, id="tiles")
        with Panel("Ranks 4", keys="s sort", legend="the legend", id="panel"):
            yield Input()
        yield Vertical(Plots(2, 36, id="plots"), id="room")

    def on_mount(self) -> None:
        for look in LOOKS.values():
            self.register_theme(look.theme)
        self.theme = "dark"
        self.query_one("#room").styles.height = 12
        tile = TileData("samples/s", "961", recent=[1.0, None, 8.0], more=[("p95 64.3", "faint")])
        self.query_one(Tiles).show([tile, TileData("step", "141")])

    def lines(self) -> list[str]:
        """Return the screen's lines as text."""
        return [strip.text for strip in self.screen._compositor.render_strips()]


def curve(values: list[float], **more: object) -> Curve:
    return Curve(XS, values, values, values, **more)  # type: ignore[arg-type]


async def test_a_panel_has_a_frame_with_its_words_and_a_rule_where_room_is_scarce() -> None:
    app = Alone()
    async with app.run_test(size=(100, 24)) as pilot:
        app.query_one(Panel).entitle(state="2 of 4 shown")
        await pilot.pause()
        lines = app.lines()
        assert lines[3].startswith("╭─ Ranks 4 ──")
        assert lines[3].endswith("── 2 of 4 shown ── s sort ─╮")
        assert any(line.endswith("── the legend ─╯") for line in lines)
        assert lines[0].startswith("╭─ samples/s ──")
        assert lines[1].startswith("│ 961  ")
        assert "p95 64.3" in lines[1]
        await pilot.resize_terminal(40, 24)
        await until(pilot, lambda: app.lines()[0].split()[:1] == ["961"])
        lines = app.lines()
        assert lines[0].split() == ["961", "samples/s", "141", "step"]
        assert lines[1].startswith("── Ranks 4 ──")
        assert not any("╭" in line or "legend" in line for line in lines)


async def test_a_word_on_a_frame_draws_its_line_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Alone()
    async with app.run_test(size=(100, 24)) as pilot:
        panel, drawn = app.query_one(Panel), list[object]()
        monkeypatch.setattr(panel, "_set_dirty", lambda *regions: drawn.extend(regions))
        panel.entitle(state="2 of 4")
        panel.entitle(state="2 of 4")
        await pilot.pause()
        assert [region.size for region in drawn] == [(100, 1)]  # type: ignore[attr-defined]


async def test_a_curve_is_connected_over_a_grid_and_a_gap_stays_a_gap() -> None:
    app = Alone()
    async with app.run_test(size=(100, 40)) as pilot:
        data = PlotData(
            "samples/s", (curve(RATE, gaps=[(40.0, 50.0)]),), (("500", ""),), zero=True
        )
        app.query_one(Plots).show([data])
        await pilot.pause()
        plot = app.query_one(Plot)
        lines = [plot.render_line(y).text for y in range(plot.size.height)]
        assert lines[-2].startswith("    0 ┼┬──")
        assert lines[-1].split()[:2] == ["0:00", "0:15"]
        columns = range(7, lines[-2].rindex("─"))
        drawn = ["".join(line[at] for line in lines[:-2]).strip(" ┈") for at in columns]
        holes = [at for at, cells in enumerate(drawn) if not cells]
        assert holes, "nothing is drawn where nothing was measured"
        assert holes == list(range(holes[0], holes[-1] + 1)), "and only there"
        assert 0.6 < holes[0] / len(drawn) < 0.75
        assert any("500" in line for line in app.lines()), "the figure of now stands in the title"


async def test_a_plot_without_values_has_no_axis() -> None:
    app = Alone()
    async with app.run_test(size=(100, 40)) as pilot:
        nothing = Curve([], [], [], [])
        app.query_one(Plots).show([PlotData("CPU %", (nothing,), since=0.0, zero=True)])
        await pilot.pause()
        plot = app.query_one(Plot)
        lines = [plot.render_line(y).text.strip() for y in range(plot.size.height)]
        assert lines == ["no values yet", *[""] * (plot.size.height - 1)]


@pytest.mark.parametrize(("room", "shown"), [(25, "demo  1 s  node1, node2"), (20, "demo  1 s")])
def test_what_there_is_no_room_for_is_left_out_whole(room: int, shown: str) -> None:
    assert whole_parts("demo  1 s  node1, node2  torch", room) == shown


async def test_a_stop_lies_on_the_axis() -> None:
    app = Alone()
    async with app.run_test(size=(100, 40)) as pilot:
        app.query_one(Plots).show([PlotData("rate", (curve([9.0] * 30 + [0.0] * 30),), zero=True)])
        await pilot.pause()
        plot = app.query_one(Plot)
        axis = plot.render_line(plot.size.height - 2).text
        assert "━━━━━━━━" in axis


async def test_the_linux_console_has_no_braille_and_no_round_corners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "linux")
    app = Alone()
    async with app.run_test(size=(100, 40)) as pilot:
        app.query_one(Plots).show([PlotData("rate", (curve(RATE),), zero=True)])
        await pilot.pause()
        text = "\n".join(app.lines())
        assert "┌─ Ranks 4" in text
        assert "▀▀▀▀" in text or "▄▄▄▄" in text
        assert not [sign for sign in text if "⠀" <= sign <= "⣿" or sign in "╭╮╰╯▂▃▅▆▇"]


def test_a_sparkline_leaves_blank_what_is_not_known_and_rises_from_0() -> None:
    assert spark_text([None, 4.0, 8.0, math.nan], 4) == " ▃▅ "
    assert spark_text([100.0, 96.0], 4) == "  ▅▅", "four percent are no mountain"
    assert spark_text([100.0, 96.0], 4, 100.0) == "  ▇▇", "a scale that is asked for is kept"


@pytest.mark.parametrize("whole", [5e-324, 1e308, -1e308])
@pytest.mark.parametrize("part", [5e-324, 1.0, 1e308, -1e308])
@pytest.mark.parametrize("longest", [None, 5e-324, 1e308, -1e308])
def test_parts_of_a_step_of_any_length_fill_their_cells(
    whole: float, part: float, longest: float | None
) -> None:
    assert parts_bar([part] * 4, whole, 10, longest).cell_len == 10


def test_a_bar_is_told_from_the_rest_of_its_line_by_shape_and_colour() -> None:
    bar = level_bar(43.0, 10)
    assert bar.plain == "━━━━╸─────"
    assert {str(span.style) for span in bar.spans} == {"curve", "frame"}
    assert (level_bar(0.0, 3).plain, level_bar(250.0, 3).plain, level_bar(None, 3).plain) == (
        "───",
        "━━━",
        "   ",
    )


def test_plots_have_two_rows_and_more_height_only_where_nothing_else_needs_the_lines() -> None:
    assert spread(20, 2, 6, 50) == (1, 18)
    assert spread(30, 2, 6, 50) == (2, 30), "what is left is there anyway"
    assert spread(30, 2, 3, 100) == (1, 30), "three stand side by side"
    assert spread(71, 2, 5, 94) == (2, 66), "taller on a tall screen"


async def test_a_column_takes_the_room_that_is_left() -> None:
    columns: list[Column[str]] = [
        Column("name", 6, lambda row: row),
        Column(
            "bar", 3, lambda row: row, fill=lambda row, cells: spark_text([1.0] * cells, cells)
        ),
    ]  # type: ignore[list-item]

    class Table(App[None]):
        def compose(self) -> ComposeResult:
            yield LineTable(columns)

    app = Table()
    async with app.run_test(size=(30, 8)) as pilot:
        table = app.query_one(LineTable)
        table.show(["a"])
        await pilot.pause()
        assert table.render_line(1).text == "a      " + "▅" * 23
