"""Whatever a node, a script or a user calls things, the screen shows it as it is and stays up."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from distconsole.model import requests as ask
from distconsole.model.events import (
    Event,
    HostStatus,
    LogLine,
    Metric,
    PlanMade,
    RunEnded,
    RunFinding,
    RunListed,
)
from fakes import scenes
from fakes.stage import ATTACH, LARGE, SMALL, on_screen, screen_text, staged, typed

ODD = "[bold]x[/red] [@click=app.quit]y[/] [link='z"
VIEWS = ("run", "logs", "cluster", "check", "runs", "transcript")


def odd(events: Iterator[Event]) -> Iterator[Event]:
    for event in events:
        match event:
            case PlanMade():
                yield msgspec.structs.replace(event, script=f"/a/{ODD}.py", name=ODD)
            case LogLine():
                yield msgspec.structs.replace(event, line=f"{event.line} {ODD}")
            case Metric() if event.name == "loss":
                yield event
                yield msgspec.structs.replace(event, name=ODD)
            case RunFinding():
                yield msgspec.structs.replace(event, summary=ODD, seen=ODD, hint=ODD)
            case RunListed():
                yield RunListed(summary=msgspec.structs.replace(event.summary, name=ODD))
            case HostStatus():
                yield msgspec.structs.replace(event, detail=ODD, hint=ODD)
            case RunEnded():
                first = event.first_failure
                if first:
                    first = msgspec.structs.replace(first, error=ODD, traceback=f"{ODD}\n{ODD}")
                yield msgspec.structs.replace(event, first_failure=first)
            case _:
                yield event


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_names_lines_and_errors_with_brackets_are_shown_as_they_are(
    size: tuple[int, int],
) -> None:
    told = {
        ask.Attach: lambda: odd(scenes.failing()),
        ask.Top: lambda: odd(scenes.hosts(lost="node2")),
        ask.Check: lambda: odd(scenes.checked()),
        ask.Runs: lambda: odd(scenes.past_runs()),
    }
    app, stage = staged(told, request=ATTACH)
    async with on_screen(app, stage, size) as pilot:
        seen = {}
        await typed(app, stage, pilot, f"check --only '{ODD}")
        for view in VIEWS:
            await typed(app, stage, pilot, f"view {view}")
            seen[view] = screen_text(app)
        await typed(app, stage, pilot, f"no such verb {ODD}")
        assert app.is_running
    assert "[bold]x[/red]" in seen["run"]
    assert "[bold]x[/red]" in seen["logs"]
    assert "[bold]x[/red]" in seen["transcript"]
