"""Takes pictures of the console: several in one session, each at two sizes. It judges none."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from textual.pilot import Pilot

from distconsole.model import requests as ask
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from fakes.stage import CONSOLE, SMALL, Scene, Stage, on_screen, read, staged, write

SIZES = {
    "tiny": (58, 14),
    "narrow": (60, 15),
    "small": SMALL,
    "large": (160, 50),
    "wide": (220, 60),
    "huge": (300, 100),
}
DARK = {"small": ("dark",), "large": ("dark",)}
TINY = {"tiny": ("dark",)}
ALL = {"small": ("dark", "light", "contrast", "terminal"), "large": ("dark", "light")}


@dataclass(frozen=True)
class Page:
    """What a session shows and how it comes there.

    Attributes:
        answers: What its requests are answered.
        views: By the name of a picture what is done first: a line of the prompt, which waits for a question
            if it ends with a question mark; keys after ``press``, letters after ``type``, a line that is put
            into the prompt and left there after ``offer``.
        themes: By size those in which the pictures are taken.
        request: What the console begins with.
        going: Kinds of requests that go on after what was told of them.
        before: What is done before it begins.
        after: What is done once it has begun.
    """

    answers: Mapping[type, Scene]
    views: Mapping[str, Sequence[str]]
    themes: Mapping[str, Iterable[str]] = field(default_factory=lambda: DARK)
    request: ask.Request = CONSOLE
    before: Callable[[], None] | None = None
    after: Callable[[ConsoleApp], None] | None = None
    going: Collection[type] = ()


async def pictures(page: Page) -> AsyncIterator[tuple[str, str]]:
    """Give the name of each picture of ``page`` and the picture, an SVG."""
    if page.before is not None:
        page.before()
    app, stage = staged(page.answers, request=page.request)
    stage.going |= set(page.going)
    async with on_screen(app, stage) as pilot:
        if page.after is not None:
            page.after(app)
        for view, steps in page.views.items():
            for step in steps:
                await _do(app, stage, pilot, step)
            for size, themes in page.themes.items():
                await pilot.resize_terminal(*SIZES[size])
                for theme in themes:
                    app.theme = theme
                    await stage.still()
                    yield f"{view}-{size}-{theme}", app.picture(view)
            await pilot.resize_terminal(*SMALL)


async def _do(app: ConsoleApp, stage: Stage, pilot: Pilot[int], step: str) -> None:
    verb, _, rest = step.partition(" ")
    if verb == "press":
        await pilot.press(*rest.split())
    elif verb == "offer":
        app.query_one(Prompt).offer(rest)
    elif verb == "type":
        await write(pilot, rest)
    elif step.endswith("?"):
        await stage.typed(step[:-1])
        await stage.question()
    else:
        app.main.run_command(step, quiet=True)
    await stage.settled()
    if app.main.view == "launch":
        await stage.planned()
    if app.main.view == "logs":
        await read(app, pilot)
