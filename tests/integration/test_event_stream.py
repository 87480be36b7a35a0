"""The program in the documentation that follows a run, with a run that goes on."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distconsole.config.load import trust_as_it_is
from suite.known_agent import leave_agent

DOCUMENT = Path(__file__).parents[2] / "docs/reference/json-events.md"
JOB = """\
import os, time
from distconsole_training import report

for step in range(5_000):
    report(loss=5000.0 - step, step=step, samples=4)
    time.sleep(0.02)
    if os.path.exists({stop!r}):
        raise SystemExit(7)
"""


@pytest.fixture
def node_dir(tmp_path: Path) -> Iterator[Path]:
    """A node folder whose agent is ended afterwards."""
    folder = tmp_path / "node"
    yield folder
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in word for word in process.info["cmdline"] or ()):
            process.kill()
            process.wait(10)


def test_the_documented_program_follows_a_run(home: Path, tmp_path: Path, node_dir: Path) -> None:
    leave_agent(home / ".cache")
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    program = tmp_path / "follow.py"
    program.write_text(
        example.replace('["distconsole",', f'[{sys.executable!r}, "-m", "distconsole",')
    )
    job, stop = tmp_path / "job.py", tmp_path / "stop"
    job.write_text(JOB.format(stop=str(stop)))
    (tmp_path / "distconsole.toml").write_text(f'node_dir = "{node_dir}"\n')
    trust_as_it_is(tmp_path / "distconsole.toml")
    environment = {**os.environ, "XDG_DATA_HOME": str(home / "data")}
    launch = [sys.executable, "-m", "distconsole", "run", "--detach", str(job)]
    subprocess.run(launch, cwd=tmp_path, env=environment, check=True, timeout=90)
    with subprocess.Popen(
        [sys.executable, str(program)],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    ) as follower:  # fmt: skip
        first = follower.stdout.readline()  # while the run goes on: it ends only after this
        assert re.fullmatch(r"step \d+: \d+\.\d{4}, 1 ranks\n", first)
        stop.touch()
        *told, last = follower.stdout.read().splitlines()
        follower.wait(60)
    assert last == "exit code 7"
    assert any("failed first" in line for line in told)
