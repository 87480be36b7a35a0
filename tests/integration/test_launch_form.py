"""The launch form on embedded nodes: real SSH on loopback, real agents, a real script."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model import requests as ask
from distconsole.model.run_events import EndState
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole.tui.app import ConsoleApp
from distconsole.tui.prompt.input import Prompt
from distconsole.tui.views.launch import HostTable, LaunchView
from distconsole.tui.views.launch_fields import FieldRow
from fakes.stage import MIDDLE, paste, screen_text, until

SCRIPT = """\
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], *sys.argv[1:], os.environ["GREETING"])
"""


@pytest.fixture
def app(cluster: EmbeddedCluster, home: Path) -> Iterator[ConsoleApp]:
    """A console on the embedded nodes."""
    file = home / ".config" / "distconsole" / "distconsole.toml"
    file.parent.mkdir(parents=True)
    file.write_text(
        "".join(
            f'[hosts.{host.name}]\nnode_dir = "{host.node_dir}"\naddress = "{host.address}"\n'
            f'python = "{sys.executable}"\n'
            for host in cluster.cluster.hosts
        )
    )
    where = ask.Where(hosts=",".join(cluster.hosts), ssh_config=str(cluster.ssh_config))
    app = ConsoleApp(ask.OpenConsole(where=where))
    app.session.begin()
    yield app
    app.session.end()


async def test_a_script_is_launched_from_the_form_and_ends_well_and_again_from_the_list(
    app: ConsoleApp, cwd: Path
) -> None:
    (cwd / "train.py").write_text(SCRIPT)
    async with app.run_test(size=MIDDLE) as pilot:
        await until(
            pilot,
            lambda: len(app.session.load_task.load.nodes) == 2 if app.session.load_task else False,
        )
        app.query_one(Prompt).offer("run --env GREETING=hello trian.py")
        await pilot.press("ctrl+n")
        await until(pilot, lambda: "NOT READY  script: " in screen_text(app))
        script = app.query_one("#field-script", FieldRow)
        await until(pilot, lambda: "did you mean" in screen_text(app))
        assert script.has_class("-wrong")
        await pilot.press("shift+home")
        await paste(pilot, "train.py")
        await pilot.press("tab")
        await paste(pilot, "--lr 3")
        await until(pilot, lambda: "2 ranks by torch on 2 hosts" in screen_text(app))
        await until(pilot, lambda: "slurm" in app.main.views.launch.model.refused)
        app.query_one(HostTable).focus()
        await pilot.press("down", "space")
        await until(pilot, lambda: "1 rank by torch" in screen_text(app))
        line = app.query_one(Prompt).value
        own = app.session.own
        assert own is not None
        assert "--hosts node1 --env GREETING=hello train.py --lr 3" in line
        assert len(own._links) == 2, "the console's own connections were used"
        await pilot.press("ctrl+s", "ctrl+s")
        await until(pilot, lambda: app.main.view == "run" and app.session.shown_run() is not None)
        task = app.session.shown_run()
        assert task is not None
        await until(pilot, lambda: task.run.end is not None and task.done)
        assert task.run.end.state is EndState.SUCCEEDED
        assert task.line == line
        assert len([each for each in app.session.tasks if each.is_run]) == 1
        await pilot.press("f5")
        await until(pilot, lambda: "rank 0 of 1 --lr 3 hello" in screen_text(app))

        await pilot.press("ctrl+o")
        await until(pilot, lambda: "✓ succeeded" in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: not app.query_one(LaunchView).lists_last)
        assert app.query_one(Prompt).value == line
