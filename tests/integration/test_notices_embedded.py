"""The first node of a real run tells a webhook of it, while nobody is attached."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model.events import RunShown
from distconsole.model.requests import Run, Show
from distconsole.model.run_events import PlanMade
from distconsole.operations import SessionSource
from distconsole_agent.journal.notices import FILE
from fakes.shims import wait_until
from fakes.webhooks import SECRET, Webhook, serving
from suite.driving import Operator, answered

SCRIPT = """
import os, sys, time
if os.environ["RANK"] == "1":
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    raise ValueError("no data")
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def webhook(home: Path) -> Iterator[Webhook]:
    with serving() as server:
        folder = home / ".config" / "distconsole"
        folder.mkdir(parents=True)
        (folder / "distconsole.toml").write_text(f'[notify]\nwebhook = "{server.address}"\n')
        yield server


def test_the_first_node_tells_of_a_run_that_nobody_follows(
    sessions: SessionSource,
    home: Path,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    webhook: Webhook,
) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    go, nodes = tmp_path / "go", tmp_path_factory.getbasetemp()
    request = Run(str(script), (str(go),), nproc="1", detach=True, name="alone")
    with Operator(request, sessions) as run:
        run.finish()
        (plan,) = run.of(PlanMade)
    assert plan.told_by_node is True
    (whom,) = nodes.rglob(FILE)
    assert stat.S_IMODE(whom.stat().st_mode) == 0o600
    go.touch()
    assert webhook.came.acquire(timeout=60)
    (body,) = webhook.bodies
    assert (body["kind"], body["title"], body["rank"]) == ("failure", "alone failed", 1)
    assert body["text"].endswith("exit code 1: rank 1 on node2: ValueError: no data")
    (shown,) = answered(Show("alone"), sessions).of(RunShown)
    assert shown.summary.state == "failed"
    wait_until("the address is gone", lambda: not whom.exists())
    files = {path for root in (home, nodes) for path in root.rglob("*") if path.is_file()}
    assert any(path.name == "spec.json" for path in files)
    holders = [path.name for path in files if SECRET.encode() in path.read_bytes()]
    assert holders == ["distconsole.toml"]
