"""Snapshots: what the views look like, small and large, dark and light, at one fixed moment.

``pytest tests/tui --snapshot-update`` accepts what they look like now.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
from textual.pilot import Pilot

from distconsole.config.paths import runs_dir
from distconsole.model import requests as ask
from distconsole.monitor.store import RunStore
from distconsole.tui.prompt import Prompt
from fakes import scenes
from fakes.journals import Journal
from fakes.stage import SMALL, settled, staged

SCENES = {
    "run": {ask.Attach: scenes.straggling},
    "failed": {ask.Attach: scenes.failing},
    "cluster": {ask.Top: lambda: scenes.hosts(lost="node2")},
    "check": {ask.Check: scenes.checked},
    "pairs": {ask.Check: lambda: scenes.paired(dead=1)},
    "runs": {ask.Runs: scenes.past_runs},
    "compare": {ask.Compare: scenes.compared},
    "replay": {},
}
SIZES = {"small": SMALL, "large": (160, 50)}


CASES = [
    *product(SCENES, SIZES, ("dark", "light")),
    *product(("run", "cluster"), ("small",), ("contrast", "terminal")),
]


@pytest.mark.usefixtures("utc", "home")
@pytest.mark.parametrize(("scene", "size", "theme"), CASES)
def test_the_view_looks_as_it_did(
    scene: str, size: str, theme: str, snap_compare: Callable[..., bool]
) -> None:
    app, stage = staged({ask.Top: scenes.hosts} | SCENES[scene])
    app.sitting.begin()
    if scene == "replay":
        Journal(run="digits-1121-a3f9", seconds=120, slow=3, fails=1).write(RunStore(runs_dir()))
    lines = {
        "run": [f"attach {scenes.RUN}"],
        "failed": [f"attach {scenes.RUN}"],
        "check": ["check"],
        "compare": ["compare digits-1121-000 digits-1121-a3f9"],
        "replay": ["replay digits-1121-a3f9", "at 70s"],
        "pairs": ["check", "pairs"],
    }

    async def set_the_scene(pilot: Pilot[int]) -> None:
        app.query_one(Prompt).cursor_blink = False
        app.theme = theme
        for line in lines.get(scene, [f"view {scene}"]):
            app.doer.perform(line, quiet=True)
            await settled(app, stage, pilot)

    try:
        assert snap_compare(app, run_before=set_the_scene, terminal_size=SIZES[size])
    finally:
        app.sitting.end()
