"""How programs are started on a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distconsole_agent.probes.programs import run_program
from distconsole_agent.supervisor import spawning
from distconsole_agent.supervisor.spawning import login_shell


def test_the_shell_for_a_command_is_one_that_may_be_run() -> None:
    assert os.access(login_shell(), os.X_OK)


@pytest.mark.parametrize("bash", [True, False])
def test_a_setup_is_in_no_command_line(
    tmp_path: Path, bash: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not bash:
        monkeypatch.setattr(
            spawning.os.path,
            "exists",
            lambda path, real=os.path.exists: "bash" not in path and real(path),
        )
    setup = f"export TOKEN='marker 0123'; cat /proc/[0-9]*/cmdline >{tmp_path}/looked"
    ended = run_program(("sh", "-c", 'echo "$TOKEN" "$#" "$0" "$1"', "x", "y z"), 20, setup)
    assert (ended.out, ended.exit_code) == ("marker 0123 1 x y z\n", 0)
    told = (tmp_path / "looked").read_bytes()
    assert b"distconsole_setup" in told
    assert b"marker 0123" not in told
