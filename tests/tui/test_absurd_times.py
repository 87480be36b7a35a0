"""Times that no clock shows: of events on the screen, and of a record that is replayed."""

import math
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import msgspec
import pytest

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.model.events import Event, LaunchKept, RunListed
from distconsole.model.run_events import RunEnded, RunEvent
from distconsole.runs.store.store import RunStore
from fakes import scenes
from fakes.journals import Journal
from fakes.stage import ATTACH, LARGE, on_screen, on_stage, screen_text, staged

ABSURD = (1e300, -1e300, math.nan, math.inf, float(2**63))


def at_odd_times(events: Iterator[Event]) -> Iterator[Event]:
    """Tell every other event twice: when it was, and at a time that cannot be."""
    replace = msgspec.structs.replace
    for place, (event, t) in enumerate(zip(events, cycle(ABSURD), strict=False)):
        match event:
            case RunListed() | LaunchKept():
                yield replace(event, summary=replace(event.summary, started=t, seconds=t))
            case RunEnded():
                yield replace(event, t=t, seconds=t)
            case RunEvent():
                yield event
                if place % 2:
                    yield replace(event, t=t)
            case _:
                yield event


async def test_a_nodes_absurd_times_leave_every_screen_standing() -> None:
    told = {
        ask.Attach: lambda: at_odd_times(scenes.failing()),
        ask.Top: lambda: at_odd_times(scenes.hosts()),
        ask.Runs: lambda: at_odd_times(scenes.past_runs()),
        ask.Launches: lambda: at_odd_times(scenes.launches()),
    }
    async with on_stage(told, LARGE, request=ATTACH) as (app, stage, pilot):
        await stage.typed("heat")
        assert "per cell" in screen_text(app)
        await pilot.press("right", "left", "home", "n", "enter", "end")
        await stage.typed("heat")
        for view in ("run", "logs", "cluster", "runs", "launch"):
            await stage.typed(f"view {view}")
            assert screen_text(app).strip()
        assert app.is_running


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("t", [1e300, math.inf])
async def test_a_past_run_of_absurd_times_is_replayed(home: Path, t: float) -> None:
    Journal(seconds=20, fails=1, odd_t=t).write(RunStore(runs_dir()))
    app, stage = staged({}, request=ask.Replay(run="digits-1121-a3f9"))
    async with on_screen(app, stage, LARGE):
        shown = {"start": "04:40:00", "10s": "HEALTHY  4 ranks", "04:40:12": "12.0 s of "}
        for moment, words in {**shown, "end": "FAILED  after 21.0 s"}.items():
            await stage.typed(f"at {moment}")
            assert words in screen_text(app)
        await stage.typed("heat")
        await stage.typed("view logs")
        assert app.is_running
