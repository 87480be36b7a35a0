"""A run inherits, and a check sees, the session that asked; not the one that started the agent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

SECONDS = 60
SCRIPT = """
import os
print('told', os.environ.get('SESSIONS_OWN', 'nothing'))
print('allocator', sorted(name for name in os.environ if name.startswith('MALLOC_')))
"""


@pytest.fixture
def node_home(tmp_path: Path) -> Iterator[Path]:
    """A home whose configuration gives this machine a node folder of the test's own."""
    config = tmp_path / "distconsole"
    config.mkdir()
    (config / "distconsole.toml").write_text(f'node_dir = "{tmp_path}/node"\n')
    (tmp_path / "tell.py").write_text(SCRIPT)
    yield tmp_path
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in word for word in process.info["cmdline"] or ()):
            process.kill()


def said(home: Path, *arguments: str, **variables: str) -> str:
    """Return what distconsole prints in a session that has ``variables``."""
    done = subprocess.run(
        [sys.executable, "-m", "distconsole", *arguments],
        env={
            **os.environ,
            **{name: str(home) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")},
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        cwd=home,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def told(home: Path, **variables: str) -> str:
    """Return what the script says in a session that has ``variables``."""
    words = said(home, "run", str(home / "tell.py"), **variables).split("told ")[1]
    return words.partition("\n")[0].strip()


def found(home: Path, **variables: str) -> set[str]:
    """Return which checks find something in a session that has ``variables``."""
    report = json.loads(
        said(home, "check", "--level", "quick", "--only", "env", "--json", **variables)
    )
    return {finding["check"] for finding in report["findings"]}


def test_a_run_inherits_its_own_session(node_home: Path) -> None:
    assert told(node_home, SESSIONS_OWN="first") == "first"
    assert told(node_home) == "nothing"
    assert told(node_home, SESSIONS_OWN="second") == "second"


def test_a_run_does_not_inherit_how_the_agent_gives_memory_back(node_home: Path) -> None:
    assert "allocator []" in said(node_home, "run", str(node_home / "tell.py"))


def test_a_check_looks_at_its_own_session(node_home: Path) -> None:
    assert "env.syntax" in found(node_home, GLOO_SOCKET_IFNAME="^lo,docker")
    assert "env.syntax" not in found(node_home)
    assert "env.syntax" in found(node_home, GLOO_SOCKET_IFNAME="^lo,docker")
