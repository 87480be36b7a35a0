"""What the screen costs: CPU and bytes to the terminal, for a few ranks and for very many.

Each subject runs alone in a pseudo-terminal of 120 x 36 while its ranks tell something new once a
second: our run view, and as a peer a bare Textual ``DataTable`` with the same figures in the same
number of rows. It judges nothing.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.alone import MIB, Figures, Row, program
from benchmarks.glass import Watched
from benchmarks.measure import Cost, cost_during
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.operations import Control, SessionSource
from fakes import scenes

WARM_UP_SECONDS = 5.0
PER_HOST = 8
SUBJECTS = ("console", "datatable")
WORLDS = (8, 64, 2048)
TOLD_AT = [scenes.START]
"""The moment of what was told last: the console's clock, so that no rank seems silent."""


def ticking(world: int) -> Iterator[Event]:
    """Yield a run's start, then once a second a window of every rank."""
    yield from scenes.training(world, PER_HOST, gpus=False)
    step = 600
    while True:
        time.sleep(1.0)
        step += 50
        t = TOLD_AT[0] = scenes.MINUTE_LATER + (step - 600) / 50
        for rank in range(world):
            yield scenes.window(rank, step, t, 1.0 + (rank + step) % 9 / 100, PER_HOST)
        yield scenes.log(0, f"step {step}", t)


def run_console(happens: Iterator[Event]) -> None:
    """Be the console on a run whose events are ``happens``."""
    from distconsole.tui.app import ConsoleApp
    from distconsole.tui.view_models.hosts import Clocks

    def perform(request: ask.Request, _s: SessionSource, control: Control) -> Iterator[Event]:
        for event in happens if isinstance(request, ask.Attach) else ():
            if control.asked is not None:
                return
            yield event

    clocks = Clocks(unix=lambda: TOLD_AT[0])
    app = ConsoleApp(ask.Attach(run=scenes.RUN), clocks=clocks, perform=perform)
    app.session.begin()
    app.run()


def run_datatable(world: int) -> None:
    """Be a bare DataTable with the same figures."""
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable

    class Peer(App[None]):
        def compose(self) -> ComposeResult:
            yield DataTable()

        def on_mount(self) -> None:
            table = self.query_one(DataTable)
            table.add_columns(
                "rank", "host", "step", "ms/step", "p95", "data", "samples/s", "loss"
            )
            for rank in range(world):
                table.add_row(*cells(rank, 600), key=str(rank))
            self.step = 600
            self.set_interval(1.0, self.tick)

        def tick(self) -> None:
            self.step += 50
            table = self.query_one(DataTable)
            columns = list(table.columns)
            for rank in range(world):
                for column, value in zip(columns, cells(rank, self.step), strict=True):
                    table.update_cell(str(rank), column, value)

    def cells(rank: int, step: int) -> tuple[str, ...]:
        window = scenes.window(rank, step, 0.0, 1.0 + (rank + step) % 9 / 100, PER_HOST)
        figures = (window.step_ms_mean, window.step_ms_p95, window.data_ms, window.samples_s)
        loss = window.metrics["loss"]
        return (
            str(rank),
            window.host,
            str(step),
            *(f"{figure:.1f}" for figure in figures),
            f"{loss:.4g}",
        )

    Peer().run()


def of_one(subject: str, world: int, seconds: float) -> tuple[Cost, float]:
    """Return what ``subject`` cost, and the bytes a second that it wrote to its terminal."""
    with Watched(program("tui_cost", subject, world)) as screen:
        screen.look_for(WARM_UP_SECONDS)
        before = screen.bytes
        cost = cost_during(screen.pid, lambda: screen.look_for(seconds))
        return cost, (screen.bytes - before) / seconds


def measure(seconds: float = 20.0) -> dict[str, Any]:
    """Measure every subject in turn; return subject -> ranks -> cost."""
    figures: dict[str, Any] = {subject: {} for subject in SUBJECTS}
    for world in WORLDS:
        for subject in SUBJECTS:
            cost, sent = of_one(subject, world, seconds)
            figures[subject][str(world)] = {**asdict(cost), "bytes_s": sent}
    return figures


def rows(figures: Figures) -> list[Row]:
    ours, peer = figures["console"], figures["datatable"]
    return [
        Row(f"screen, {ranks} ranks", _screen(cost), f"a bare DataTable {_screen(peer[ranks])}")
        for ranks, cost in ours.items()
    ]


def _screen(cost: Figures) -> str:
    return (
        f"{cost['cpu_share']:.1%} of a core, {cost['rss_bytes'] / MIB:.0f} MiB, "
        f"{cost['bytes_s']:,.0f} bytes/s"
    )


def be(subject: str, world: str) -> None:
    run_console(ticking(int(world))) if subject == "console" else run_datatable(int(world))
