"""Snapshots: what the views look like, small and large, dark and light, at one fixed moment.

``pytest tests/tui --snapshot-update`` accepts what they look like now.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from textual.pilot import Pilot

from distconsole.model import requests as ask
from distconsole.tui.prompt import Prompt
from fakes import scenes
from fakes.stage import LARGE, SMALL, settled, staged

SCENES = {
    "run": {ask.Attach: scenes.straggling},
    "failed": {ask.Attach: scenes.failing},
    "cluster": {ask.Top: lambda: scenes.hosts(lost="node2")},
    "check": {ask.Check: scenes.checked},
    "pairs": {ask.Check: lambda: scenes.paired(dead=1)},
    "runs": {ask.Runs: scenes.past_runs},
}
SIZES = {"small": SMALL, "large": LARGE}


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("theme", ["dark", "light"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scene", SCENES)
def test_the_view_looks_as_it_did(
    scene: str, size: str, theme: str, snap_compare: Callable[..., bool]
) -> None:
    app, stage = staged({ask.Top: scenes.hosts} | SCENES[scene])
    app.sitting.begin()
    lines = {
        "run": [f"attach {scenes.RUN}"],
        "failed": [f"attach {scenes.RUN}"],
        "check": ["check"],
        "pairs": ["check", "pairs"],
    }

    async def set_the_scene(pilot: Pilot[int]) -> None:
        app.query_one(Prompt).cursor_blink = False
        app.theme = f"textual-{theme}"
        for line in lines.get(scene, [f"view {scene}"]):
            app.doer.perform(line, quiet=True)
            await settled(app, stage, pilot)

    try:
        assert snap_compare(app, run_before=set_the_scene, terminal_size=SIZES[size])
    finally:
        app.sitting.end()
