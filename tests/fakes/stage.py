"""A console on the screen whose requests are answered by scenes instead of hosts."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from textual.pilot import Pilot

from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.operations import Control, SessionSource
from distconsole.tui.app import ConsoleApp
from distconsole.tui.pictures import Clocks
from distconsole.tui.prompt import Prompt
from fakes.scenes import MINUTE_LATER, RUN

SMALL, MIDDLE, LARGE = (80, 24), (120, 36), (200, 60)
DEADLINE_SECONDS = 10.0

Scene = Callable[[], Iterable[Event]]

ATTACH = ask.Attach(run=RUN)
CONSOLE = ask.OpenConsole(where=ask.Where(hosts="node1,node2"))


class Stage:
    """Answers requests by scenes: all of a scene's events at once; then it waits to be left.

    Args:
        scenes: The answer to each kind of request; kinds that are not here answer nothing.
    """

    def __init__(self, scenes: Mapping[type, Scene]) -> None:
        self.scenes = dict(scenes)
        self.asked: list[ask.Request] = []
        self.controls: list[Control] = []
        self.ended = threading.Event()
        self._told = 0

    def __call__(
        self, request: ask.Request, sessions: SessionSource, control: Control
    ) -> Iterator[Event]:
        self.asked.append(request)
        self.controls.append(control)
        yield from self.scenes.get(type(request), tuple)()
        self._told += 1
        if isinstance(request, ask.Attach | ask.Run | ask.Top | ask.Demo):
            while control.asked is None and not self.ended.is_set():
                self.ended.wait(0.01)

    @property
    def told(self) -> bool:
        """Whether every scene asked for so far was told to its end."""
        return self._told == len(self.asked)


def staged(
    scenes: Mapping[type, Scene],
    *,
    request: ask.Request = CONSOLE,
    history: Path | None = None,
    age_seconds: float = 0.0,
) -> tuple[ConsoleApp, Stage]:
    """Return a console that is answered by ``scenes``, at one fixed moment."""
    stage = Stage(scenes)

    def monotonic() -> float:
        return 1000.0 + (age_seconds if stage.asked and stage.told else 0.0)

    clocks = Clocks(unix=lambda: MINUTE_LATER, monotonic=monotonic)
    return ConsoleApp(request, history, clocks, stage), stage


@asynccontextmanager
async def on_screen(
    app: ConsoleApp, stage: Stage, size: tuple[int, int] = SMALL
) -> AsyncIterator[Pilot[int]]:
    """Run ``app`` without a terminal until the block ends; all its threads end too."""
    app.sitting.begin()
    try:
        async with app.run_test(size=size) as pilot:
            await settled(app, stage, pilot)
            yield pilot
    finally:
        app.sitting.end()


async def settled(app: ConsoleApp, stage: Stage, pilot: Pilot[int]) -> None:
    """Wait until everything told is on the screen.

    Raises:
        TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    await pilot.pause()
    while not stage.told or len(stage.asked) < len(app.sitting.feeds):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(stage.asked)} scenes, not all told")
        await pilot.pause(0.02)
    for _ in range(2):  # what a first drawing lays out, a second one fills
        app.redraw()
        await pilot.pause()


async def typed(app: ConsoleApp, stage: Stage, pilot: Pilot[int], line: str) -> None:
    """Put ``line`` into the prompt, press Enter, and wait until what it asks for is on the screen."""
    app.query_one(Prompt).offer(line)
    await pilot.press("enter")
    await settled(app, stage, pilot)


def screen_text(app: ConsoleApp) -> str:
    """Return what stands on the screen, a line each."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)
