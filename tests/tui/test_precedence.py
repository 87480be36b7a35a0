"""Whoever waits for the answer to a key comes before threads that gather, and for a limited time."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from textual import events

from distconsole.model.events import Event
from distconsole.runs.present import Present, present
from distconsole.tui.tasks import RequestTask
from distconsole.tui.terminal import low_overhead
from distconsole.tui.terminal.input_priority import LONGEST_SECONDS, InputPriority
from distconsole.tui.transcript import Transcript
from distconsole.tui.views import run
from distconsole.tui.views.logs import LogsView
from distconsole.tui.views.run import RunView
from distconsole.tui.widgets.tiles import Tiles
from fakes import scenes
from fakes.stage import ATTACH, on_stage, screen_text


class Hands:
    """A clock that is set."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def unhurried(priority: InputPriority) -> None:
    """Have its time stand still, and no key come too soon after another."""
    priority._clock = Hands()
    priority._not_before = 0.0


def test_an_answer_is_awaited_until_it_is_there_and_no_longer_than_that() -> None:
    hands = Hands()
    input_priority = InputPriority(hands)
    assert not input_priority.awaited
    input_priority.ask()
    assert input_priority.awaited
    input_priority.answer()
    assert not input_priority.awaited
    hands.now += 1
    input_priority.ask()
    hands.now += LONGEST_SECONDS
    assert not input_priority.awaited


def test_others_are_kept_from_their_work_for_at_most_half_of_the_time() -> None:
    hands = Hands()
    input_priority = InputPriority(hands)
    kept = 0
    for _ in range(1000):  # keys every 10 ms, none of which asks for anything
        input_priority.ask()
        kept += input_priority.awaited
        hands.now += 0.01
    assert 400 <= kept <= 600


def test_what_is_drawn_before_a_key_was_taken_is_not_its_answer() -> None:
    input_priority = InputPriority(Hands())
    input_priority.ask()
    input_priority.drawn()
    assert input_priority.awaited
    input_priority.take()
    input_priority.drawn()
    assert not input_priority.awaited


def test_a_thread_that_gives_way_goes_on_with_the_answer() -> None:
    input_priority = InputPriority(Hands())
    input_priority.ask()
    thread = threading.Thread(target=input_priority.yield_to_input)
    thread.start()
    input_priority.answer()
    thread.join(5)
    assert not thread.is_alive()


def test_a_task_yields_to_input_before_each_event() -> None:
    class Counting(InputPriority):
        ways = 0

        def yield_to_input(self) -> None:
            self.ways += 1

    told = list(scenes.training(4, 2, gpus=False))

    def perform(*_: object) -> Iterator[Event]:
        yield from told

    input_priority = Counting()
    task = RequestTask(
        ATTACH, "", None, Transcript(), perform=perform, input_priority=input_priority
    )  # type: ignore[arg-type]
    task.start()
    assert task.join(30)
    assert input_priority.ways == len(told)


async def test_what_a_key_changes_is_drawn_without_waiting_for_the_next_moment_of_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_stage({type(ATTACH): scenes.straggling}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("view run")
        drawn = asyncio.Event()
        monkeypatch.setattr(app, "_display", lambda *_: drawn.set())
        # Textual's own moments of drawing do not come any more, and a busy machine is given time.
        app.screen._update_timer.stop()
        monkeypatch.setattr(low_overhead, "HURRY_SECONDS", 60.0)
        monkeypatch.setattr(app.screen, "_rests_until", 0.0)
        app.post_message(events.Key("x", "x"))
        await asyncio.wait_for(drawn.wait(), 30)


async def test_the_beat_draws_nothing_while_a_key_waits() -> None:
    async with on_stage({type(ATTACH): scenes.straggling}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("view run")
        assert "rank 3" in screen_text(app)
        unhurried(app.input_priority)
        drawn: list[object] = []
        app.query_one(RunView).draw = lambda *_: drawn.append(1)  # type: ignore[method-assign]
        app.input_priority.ask()
        app.main.views.forget_drawn()
        app.main.tick()
        assert not drawn
        app.main.redraw()
        assert drawn == [1], "what the key itself asks for is drawn"
        app.input_priority.answer()
        app.main.views.forget_drawn()
        app.main.tick()
        assert drawn == [1, 1]


async def test_no_rows_of_the_log_are_made_while_a_key_waits() -> None:
    async with on_stage({type(ATTACH): scenes.straggling}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("view logs")
        logs, priority = app.query_one(LogsView), app.input_priority
        unhurried(priority)
        advanced: list[float] = []
        logs._advance = lambda: advanced.append(1)  # type: ignore[method-assign]
        priority.ask()
        logs._go_on()
        assert not advanced
        assert logs._goes_on, "they are made later"
        priority.answer()
        logs._go_on()
        assert advanced


async def test_a_picture_that_is_being_made_is_given_up_for_a_key_but_not_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with on_stage({type(ATTACH): scenes.straggling}, request=ATTACH) as (app, stage, _pilot):
        await stage.typed("view run")
        views, priority = app.main.views, app.input_priority
        unhurried(priority)
        shown: list[object] = []
        monkeypatch.setattr(app.query_one("#tiles", Tiles), "show", shown.append)

        def press_while_it_is_drawn(*told: Any) -> Present:
            priority.ask()
            return present(*told)

        monkeypatch.setattr(run, "present", press_while_it_is_drawn)

        def tick_with_news() -> int:
            priority.answer()
            priority._not_before = 0.0
            views.shown_task.version += 1
            views._rest_until = 0.0
            app.main.tick()
            return len(shown)

        assert tick_with_news() == 0
        assert tick_with_news() == 0
        views._drawn_at -= 2.0
        assert tick_with_news() == 1, "figures that are two seconds old come first"
        assert tick_with_news() == 1
        priority.answer()
        priority._not_before = 0.0
        app.main.redraw()
        assert len(shown) == 2, "what the key itself asks for is drawn"


async def test_a_key_asks_for_precedence_when_it_is_read_and_a_move_of_the_mouse_does_not() -> (
    None
):
    async with on_stage({}, request=ATTACH) as (app, _, _):
        app.input_priority._clock = Hands()
        moved = events.MouseMove(None, 1, 1, 0, 0, 0, False, False, False)
        app._post_message(moved).close()
        assert not app.input_priority.awaited
        app._post_message(events.Key("x", "x")).close()
        assert app.input_priority.awaited
