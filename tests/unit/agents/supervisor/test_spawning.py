"""How programs are started on a node."""

from __future__ import annotations

import os

from distconsole_agent.supervisor.spawning import login_shell


def test_the_shell_for_a_command_is_one_that_may_be_run() -> None:
    assert os.access(login_shell(), os.X_OK)
