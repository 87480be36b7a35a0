"""A console on the screen whose requests are answered by scenes instead of hosts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from textual.app import App
from textual.events import Paste
from textual.pilot import Pilot
from textual.widget import Widget

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import Event
from distconsole.model.names import HostName, RunId
from distconsole.operations import Control, SessionSource
from distconsole.runs.store.run_file import RunRecord
from distconsole.runs.store.store import RunStore
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.prompt.question import Question
from distconsole.tui.prompt.shortcuts import Shortcuts
from distconsole.tui.replaying import ReplayTask
from distconsole.tui.view_models.hosts import Clocks
from distconsole.tui.views.logs import LogsView
from fakes.scenes import MINUTE_LATER, RUN, plan

SMALL, MIDDLE, LARGE = (80, 24), (120, 36), (200, 60)
DEADLINE_SECONDS = 120.0
"""Less than a whole test may take, so that a test that waits in vain says for what."""

Scene = Callable[[], Iterable[Event]]

ATTACH = ask.Attach(run=RUN)
CONSOLE = ask.OpenConsole(where=ask.Where(hosts="node1,node2"))


class Stage:
    """Answers requests by scenes: all of a scene's events at once; then it waits to be left.

    Args:
        scenes: The answer to each kind of request; kinds that are not here answer nothing.

    Attributes:
        going: Kinds of requests that go on after what was told of them.
        app, pilot: The console, once it is on the screen, and who presses its keys.
    """

    app: ConsoleApp
    pilot: Pilot[int]

    def __init__(self, scenes: Mapping[type, Scene]) -> None:
        self.scenes = dict(scenes)
        self.going: set[type] = {ask.Attach, ask.Run, ask.Top, ask.Demo}
        self.asked: list[ask.Request] = []
        self.controls: list[Control] = []
        self.ended = threading.Event()
        self._told = 0

    def __call__(
        self, request: ask.Request, sessions: SessionSource, control: Control
    ) -> Iterator[Event]:
        self.asked.append(request)
        self.controls.append(control)
        try:
            yield from self.scenes.get(type(request), tuple)()
        finally:
            self._told += 1
        if type(request) in self.going:
            while control.asked is None and not self.ended.is_set():
                self.ended.wait(0.01)

    @property
    def told(self) -> bool:
        """Whether every scene asked for so far was told to its end."""
        return self._told == len(self.asked)

    async def settled(self) -> None:
        """Wait until everything told is on the screen.

        Raises:
            TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
        """
        deadline = time.monotonic() + DEADLINE_SECONDS
        await self.pilot.pause()
        while not (self.told and _shown(self.app, self)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(self.asked)} scenes, not all told")
            await self.pilot.pause(0.02)
        for _ in range(2):  # what a first drawing lays out, a second one fills
            self.app.main.redraw()
            await self.pilot.pause()

    async def still(self) -> None:
        """Wait until the screen has the terminal's size, nothing fades any more, and drawing it anew changes nothing.

        A resize reaches the screen by a timer, and each layout may tell some part a size that it is laid out for once more.

        Raises:
            TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
        """
        before: list[object] = []

        async def unchanged() -> bool:
            await self.settled()
            await self.pilot.wait_for_animation()
            compositor = self.app.screen._compositor
            now = list(compositor.render_strips())
            same = now == before and compositor.size == self.app.size
            before[:] = now
            return same

        deadline = time.monotonic() + DEADLINE_SECONDS
        while not await unchanged():
            if time.monotonic() > deadline:
                raise TimeoutError(f"it changes all the time:\n{screen_text(self.app)}")

    async def typed(self, line: str) -> None:
        """Put ``line`` into the prompt, press Enter, and wait until what it asks for is on the screen."""
        self.app.query_one(Prompt).offer(line)
        await self.pressed("enter")

    async def pressed(self, *keys: str) -> None:
        """Press keys, and wait until what they ask for is on the screen."""
        await self.pilot.press(*keys)
        await self.settled()

    async def planned(self) -> None:
        """Wait until what is filled into the launch form was planned, or cannot be.

        Raises:
            TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
        """
        model = self.app.main.views.launch.model

        def is_told() -> bool:
            self.app.main.redraw()
            latest = model.latest
            told = latest is None or latest.done or latest.line != model.line
            return model.settled and told

        await self.pilot.pause()
        await until(self.pilot, is_told)
        await self.settled()

    async def question(self) -> None:
        """Wait until a question is on the screen.

        Raises:
            TimeoutError: if none comes within ``DEADLINE_SECONDS``.
        """
        await until(self.pilot, lambda: self.app.query_one(Question).waits)
        await self.settled()


def staged(
    scenes: Mapping[type, Scene],
    *,
    request: ask.Request = CONSOLE,
    history: Path | None = None,
    age_seconds: float = 0.0,
    theme_kept: Path | None = None,
    shortcuts: Shortcuts | None = None,
    startup: Path | None = None,
) -> tuple[ConsoleApp, Stage]:
    """Return a console that is answered by ``scenes``, at one fixed moment."""
    stage = Stage(scenes)

    def monotonic() -> float:
        return 1000.0 + (age_seconds if stage.asked and stage.told else 0.0)

    clocks = Clocks(unix=lambda: MINUTE_LATER, monotonic=monotonic)
    app = ConsoleApp(
        request,
        history,
        clocks,
        stage,
        theme_kept=theme_kept,
        shortcuts=shortcuts,
        startup=startup,
    )
    return app, stage


@asynccontextmanager
async def on_screen(
    app: ConsoleApp, stage: Stage, size: tuple[int, int] = SMALL
) -> AsyncIterator[Pilot[int]]:
    """Run ``app`` without a terminal until the block ends; all its threads end too."""
    app.session.begin(asks=isinstance(app.main.request, ask.OpenConsole))
    try:
        async with app.run_test(size=size) as pilot:
            pilot._wait_for_screen = partial(_handled, app)
            stage.app, stage.pilot = app, pilot
            await stage.settled()
            yield pilot
    finally:
        app.session.end()


@asynccontextmanager
async def on_stage(
    scenes: Mapping[type, Scene], size: tuple[int, int] = SMALL, **how: Any
) -> AsyncIterator[tuple[ConsoleApp, Stage, Pilot[int]]]:
    """Run a console that is answered by ``scenes`` until the block ends; ``how`` is that of ``staged``."""
    app, stage = staged(scenes, **how)
    async with on_screen(app, stage, size) as pilot:
        yield app, stage, pilot


async def _handled(app: ConsoleApp) -> bool:
    """Wait until all messages are handled, as the pilot would, and those that they cause, unless that never ends.

    The pilot takes a process that gets no processor for an idle one.
    """
    for _ in range(20):
        if not await _answered(app):
            return False
        await asyncio.sleep(0)  # so that the handlers return
        if not (app.message_queue_size or any(_busy(app.screen))):
            break
    return True


async def _answered(app: ConsoleApp) -> bool:
    """Wait until the messages that are there are handled, but ask no widget that waits for one.

    Nearly all do, and to ask each of them at each key takes a fifth of a test's time.
    """
    to_come = 0
    all_handled, failed = asyncio.Event(), app._exception_event

    def count_down() -> None:
        nonlocal to_come
        to_come -= 1
        if not to_come:
            all_handled.set()

    to_come = sum([part.call_later(count_down) for part in (app, *_busy(app.screen))])
    waits = [asyncio.create_task(event.wait()) for event in (all_handled, failed) if to_come]
    if waits:
        _, others = await asyncio.wait(
            waits, timeout=DEADLINE_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for other in others:
            other.cancel()
    return not to_come


def _busy(part: Widget) -> Iterator[Widget]:
    """Give ``part`` and those in it that handle a message or have one to handle."""
    if part.message_queue_size or not part._message_queue.ready_event._waiters:
        yield part
    for child in part.children:
        yield from _busy(child)


def _shown(app: ConsoleApp, stage: Stage) -> bool:
    """Whether every scene was asked for, the hosts first, and every past run is read and at its moment."""
    if app.screen._compositor.size != app.size:
        return False  # a resize reaches the screen by a timer
    looks = not (app.session.offers or isinstance(app.main.request, ask.Demo | ask.Replay))
    if looks and app.session.load_task is None:
        return False  # the console asks for its hosts only once its first screen stands
    past = [task for task in app.session.tasks if isinstance(task, ReplayTask)]
    return len(stage.asked) >= len(app.session.tasks) - len(past) and all(
        task.done and (task.clock is None or task.moment_t == task.clock.t) for task in past
    )


async def write(pilot: Pilot[int], text: str) -> None:
    """Type ``text`` where the focus is, key by key."""
    for letter in text:
        await pilot.press("space" if letter == " " else letter)


async def paste(pilot: Pilot[int], text: str) -> None:
    """Paste ``text`` where the focus is; a key waits until the process idles, nodes in it included."""
    pilot.app.screen.post_message(Paste(text))
    await pilot.pause()


def screen_text(app: App[Any]) -> str:
    """Return what stands on the screen, a line each."""
    lines = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line).rstrip() for line in lines)


async def read(app: ConsoleApp, pilot: Pilot[int]) -> None:
    """Wait until the lines of the Logs screen are all there.

    Raises:
        TimeoutError: if that takes longer than ``DEADLINE_SECONDS``.
    """
    await until(pilot, lambda: not app.query_one(LogsView).reading)
    await pilot.pause()


async def until(pilot: Pilot[int], claim: Callable[[], bool]) -> None:
    """Wait until ``claim`` is true.

    Raises:
        TimeoutError: with what is on the screen, if it is not within ``DEADLINE_SECONDS``.
    """
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not claim():
        if time.monotonic() > deadline:
            raise TimeoutError(f"on the screen:\n{screen_text(pilot.app)}")
        await pilot.pause(0.02)


def keep_run(run: str = RUN, ranks: int = 4) -> None:
    """Put a run without an end into the store of runs, as the console that started it has done."""
    made = plan(ranks)
    record = RunRecord(
        RunId(run),
        started=made.t,
        hosts=tuple(HostName(host.host) for host in made.hosts),
        plan=msgspec.json.encode(made),
    )
    RunStore(runs_dir()).create(record).close()
