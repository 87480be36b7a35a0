"""A run inherits, and a check sees, the session that asked; not the one that started the agent."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from suite.programs import run_to_end

SECONDS = 60
SCRIPT = """
import os
print('told', *(os.environ.get(name, 'nothing') for name in ('SESSIONS_OWN', 'FIRSTS_ALONE')))
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
    done = run_to_end(
        [sys.executable, "-m", "distconsole", *arguments],
        env={
            **os.environ,
            **{name: str(home) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")},
            **variables,
        },
        timeout=SECONDS,
        cwd=home,
    )
    assert "Traceback" not in done.stderr
    return done.stdout


def test_a_run_inherits_its_own_session_and_nothing_of_the_agent_s(node_home: Path) -> None:
    words = ("run", str(node_home / "tell.py"))
    first = said(node_home, *words, SESSIONS_OWN="first", FIRSTS_ALONE="yes")
    assert "told first yes\n" in first
    assert "allocator []" in first, "how the agent gives memory back"
    assert "told second nothing\n" in said(node_home, *words, SESSIONS_OWN="second")


def test_a_check_looks_at_its_own_session(node_home: Path) -> None:
    words = ("check", "--level", "quick", "--only", "env", "--json")
    for value in ("^lo,docker", "^lo,eth9"):
        report = json.loads(said(node_home, *words, GLOO_SOCKET_IFNAME=value))
        (seen,) = (each["seen"] for each in report["findings"] if each["check"] == "env.syntax")
        assert seen == f"GLOO_SOCKET_IFNAME={value}"
