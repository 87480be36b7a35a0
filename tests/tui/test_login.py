"""What a login asks for, on the screen, and what becomes of the answer."""

import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from distconsole.model import requests as ask
from distconsole.ssh.asking import LoginQuestion
from distconsole.tui.app import ConsoleApp
from distconsole.tui.login import LoginScreen, ScreenAsker
from fakes import scenes
from fakes.stage import on_screen, on_stage, screen_text, staged

CODE = LoginQuestion("gpu1", "(ada@gpu1) \x1b[31mVerification code:")
TOUCH = LoginQuestion("gpu1", "Confirm user presence for key", only_told=True)


async def put(
    app: ConsoleApp, pilot: Pilot[int], question: LoginQuestion, wanted: Callable[[], bool]
) -> Future[str | None]:
    """Have a thread ask, and wait until the question stands there."""
    answer: Future[str | None] = Future()

    def ask_it() -> None:
        answer.set_result(ScreenAsker(app).ask(question, wanted))

    threading.Thread(target=ask_it).start()
    while not isinstance(app.screen, LoginScreen):
        await pilot.pause(0.01)
    await pilot.pause()
    return answer


async def over(app: ConsoleApp, pilot: Pilot[int], answer: Future[str | None]) -> str | None:
    while not answer.done() or isinstance(app.screen, LoginScreen):
        await pilot.pause(0.01)
    return answer.result()


async def test_a_code_is_typed_unseen() -> None:
    async with on_stage({ask.Top: scenes.hosts}) as (app, _, pilot):
        answer = await put(app, pilot, CODE, lambda: True)
        await pilot.press(*"q123")
        shown = screen_text(app)
        assert "(ada@gpu1) Verification code:" in shown
        assert "••••" in shown
        assert "q123" not in shown
        await pilot.press("enter")
        assert await over(app, pilot, answer) == "q123"
        assert app.is_running


@pytest.mark.parametrize("question", [CODE, TOUCH], ids=["code", "touch"])
async def test_escape_answers_nothing(question: LoginQuestion) -> None:
    async with on_stage({ask.Top: scenes.hosts}) as (app, _, pilot):
        answer = await put(app, pilot, question, lambda: True)
        assert len(app.screen.query(Input)) == (not question.only_told)
        await pilot.press("escape")
        assert await over(app, pilot, answer) is None


async def test_a_question_that_nobody_waits_for_any_more_goes_away() -> None:
    app, stage = staged({ask.Top: scenes.hosts})
    ended = threading.Event()
    async with on_screen(app, stage) as pilot:
        answer = await put(app, pilot, TOUCH, lambda: not ended.is_set())
        ended.set()
        assert await over(app, pilot, answer) is None


async def test_enter_pressed_twice_is_one_answer() -> None:
    async with on_stage({ask.Top: scenes.hosts}) as (app, _, pilot):
        answer = await put(app, pilot, CODE, lambda: True)
        entry = app.screen.query_one(Input)
        entry.value = "123"
        for _ in range(2):  # the second comes before the first has taken the question away
            entry.post_message(Input.Submitted(entry, entry.value))
        assert await over(app, pilot, answer) == "123"
        await pilot.pause()
        assert app.is_running
        assert "distconsole" in screen_text(app)
