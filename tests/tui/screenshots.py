"""``python tests/tui/screenshots.py [FOLDER]``: the pictures of README and docs, taken of real runs.

Two embedded nodes, real SSH on loopback, a real check and a real training, in which one rank is
slowed down for the moving picture of the run. The GPUs of the cluster view are the stand-in NVML's of
the tests (``fakes.nvml``), because the machine that takes the pictures may have none. It asserts nothing.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, nullcontext
from pathlib import Path

from distconsole.config.load import load_config
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.operations import Control, SessionSource, perform
from distconsole.session import Session
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole.tui.app import ConsoleApp
from distconsole.tui.theme.themes import DARK, LIGHT

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.nvml import build
from suite.moving_picture import picture_of

SIZE = (132, 36)
DEADLINE_SECONDS = 240.0
SLOW_RANK, SLOW_FROM_STEP, SLOW_SECONDS = 2, 240, 0.03
SLOW_TRAINING = f"""
import os, time
from itertools import count
from distconsole_training.recipes import digits

class Net(digits.Net):
    steps = count()

    def forward(self, images):
        if self.training and os.environ["RANK"] == "{SLOW_RANK}" and next(self.steps) > {SLOW_FROM_STEP}:
            time.sleep({SLOW_SECONDS})
        return super().forward(images)

digits.Net = Net
digits.main()
"""
"""The demo's training; one rank's forward takes longer from some step on, as on a GPU that is throttled."""


def main() -> None:
    """Take all pictures, with all colours whatever terminal this runs in."""
    os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    os.environ.pop("NO_COLOR", None)
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_check(folder))
    take_slow_rank(folder)
    os.environ["LD_LIBRARY_PATH"] = str(build())
    asyncio.run(take_cluster(folder))


async def take_check(folder: Path) -> None:
    """Take the check of the demo when its report is there."""
    app = ConsoleApp(ask.Demo(torch=True))
    try:
        async with app.run_test(size=SIZE) as pilot:
            task = app.session.tasks[0]
            task.followed = True  # the screen stays where this script puts it
            await reached(app, lambda: task.check.report is not None)
            take(app, folder / "check.svg")
            await pilot.pause()
    finally:
        app.session.end()


def take_slow_rank(folder: Path) -> None:
    """Take a run on embedded nodes once its slow rank is found."""
    with (
        tempfile.TemporaryDirectory(prefix="dc-shot-", ignore_cleanup_errors=True) as place,
        EmbeddedCluster(2, folder=Path(place)) as embedded,
        Session(load_config(), embedded.cluster) as session,
        chdir(place),
    ):
        Path("train.py").write_text(SLOW_TRAINING)

        def on_embedded(
            request: ask.Request, _sessions: SessionSource, control: Control | None = None
        ) -> Iterator[Event]:
            return perform(request, lambda _where: nullcontext(session), control)

        app = ConsoleApp(ask.OpenConsole(), perform=on_embedded)
        app.session.own = session
        asyncio.run(take_run(app, "run --nproc 2 --name digits train.py --epochs 99", folder))


async def take_run(app: ConsoleApp, line: str, folder: Path) -> None:
    """Take the form with the run's line, then the run's view from its start until after the headline names a slow rank."""
    film = Film(app)
    try:
        async with app.run_test(size=SIZE) as pilot:
            while not app.main.stands:
                await asyncio.sleep(0.1)
            app.main.prompt.offer(line)
            await pilot.press("ctrl+n")
            form = app.main.views.launch
            await reached(app, lambda: form.model.settled and form.model.latest is not None)
            take(app, folder / "form.svg")
            app.main.run_command(line)
            task = app.session.tasks[-1]

            def after(step: int) -> Callable[[], bool]:
                return lambda: (task.run.steps or 0) > step

            await reached(app, lambda: bool(task.run.ranks))
            app.main.show_view("run")
            app.main.run_command("clear", quiet=True)
            await film.shoot(1)
            for step in (10, SLOW_FROM_STEP // 3, 2 * SLOW_FROM_STEP // 3):
                await reached(app, after(step))
                await film.shoot(2)
            await reached(app, lambda: any("straggler" in f.check for f in task.run.findings))
            await film.shoot(3)
            app.main.run_command("heat", quiet=True)
            await film.shoot(3)
            app.main.run_command("heat", quiet=True)
            app.main.run_command("clear", quiet=True)
            await reached(app, after(2 * SLOW_FROM_STEP))
            await film.shoot(4)
            film.write(folder, "run")
            task.control.stop()
            await pilot.pause()
    finally:
        app.session.end()


class Film:
    """Moments of a screen, in a dark and a light theme."""

    def __init__(self, app: ConsoleApp) -> None:
        self._app = app
        self._frames: dict[str, list[tuple[str, float]]] = {DARK: [], LIGHT: []}

    async def shoot(self, seconds: float) -> None:
        """Take the screen as it is now, for so many seconds of the picture."""
        for theme, frames in self._frames.items():
            self._app.theme = theme
            await drawn(self._app)
            frames.append((self._app.export_screenshot(title="distconsole"), seconds))

    def write(self, folder: Path, name: str) -> None:
        for theme, frames in self._frames.items():
            write(folder / f"{name}-{theme}.svg", picture_of(frames))


async def take_cluster(folder: Path) -> None:
    """Take the hosts while they train."""
    app = ConsoleApp(ask.Demo(torch=True))
    try:
        async with app.run_test(size=SIZE):
            task = app.session.tasks[0]
            task.followed = True
            app.main.show_view("cluster")
            await reached(app, lambda: len(task.load.gpus) >= 16 and (task.run.steps or 0) > 50)
            app.main.run_command("clear", quiet=True)
            await reached(app, lambda: True)
            take(app, folder / "cluster.svg")
    finally:
        app.session.end()


async def reached(app: ConsoleApp, ready: Callable[[], bool]) -> None:
    """Wait until ``ready`` and drawn.

    Raises:
        TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not ready():
        if time.monotonic() > deadline or any(task.done for task in app.session.tasks[-1:]):
            raise TimeoutError("the demo did not come that far: run 'distconsole demo' to see why")
        await asyncio.sleep(0.1)
    await drawn(app)


async def drawn(app: ConsoleApp) -> None:
    """Wait until the screen shows what there is."""
    for _ in range(3):
        app.main.redraw()
        await asyncio.sleep(0.3)


def take(app: ConsoleApp, path: Path) -> None:
    """Write the screen to ``path``."""
    write(path, picture_of([(app.export_screenshot(title="distconsole"), 1.0)]))


def write(path: Path, picture: str) -> None:
    here = re.escape(sys.prefix)  # of whoever takes the pictures
    path.write_text(re.sub(rf' textLength="[\d.]+">{here}', ">/opt/venv", picture))
    print(path)


if __name__ == "__main__":
    main()
