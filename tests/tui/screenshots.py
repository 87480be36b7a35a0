"""``python tests/tui/screenshots.py [FOLDER]``: the README's pictures, taken of a real demo while it runs.

Two embedded nodes, real SSH on loopback, a real check and a real training. The GPUs of the cluster
view are the stand-in NVML's of the tests (``fakes.nvml``), because the machine that takes the
pictures may have none. It asserts nothing.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fakes.nvml import build

SIZE = (120, 36)
DEADLINE_SECONDS = 240.0
MID_RUN_STEPS = 400


def main() -> None:
    """Take all pictures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images")
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(take_check_and_run(folder))
    os.environ["LD_LIBRARY_PATH"] = str(build())
    asyncio.run(take_cluster(folder))


async def take_check_and_run(folder: Path) -> None:
    """Take the check when its report is there, the run in its middle."""
    app = ConsoleApp(ask.Demo())
    try:
        async with app.run_test(size=SIZE) as pilot:
            task = app.session.tasks[0]
            app.dispatcher.followed.append(task)  # the screen stays where this script puts it
            await reached(app, lambda: task.check.report is not None)
            take(app, folder / "check.svg")
            app.show_view("run")
            await reached(app, lambda: (task.run.steps or 0) >= MID_RUN_STEPS)
            take(app, folder / "run.svg")
            await pilot.pause()
    finally:
        app.session.end()


async def take_cluster(folder: Path) -> None:
    """Take the hosts while they train."""
    app = ConsoleApp(ask.Demo())
    try:
        async with app.run_test(size=SIZE):
            task = app.session.tasks[0]
            app.dispatcher.followed.append(task)
            app.show_view("cluster")
            await reached(app, lambda: len(task.load.gpus) >= 16 and (task.run.steps or 0) > 50)
            app.dispatcher.run_command("clear", quiet=True)
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
        if time.monotonic() > deadline or app.session.tasks[0].done:
            raise TimeoutError("the demo did not come that far: run 'distconsole demo' to see why")
        await asyncio.sleep(0.1)
    for _ in range(3):
        app.redraw()
        await asyncio.sleep(0.3)


def take(app: ConsoleApp, path: Path) -> None:
    """Write the screen to ``path``."""
    app.save_screenshot(str(path))
    print(path)


if __name__ == "__main__":
    main()
