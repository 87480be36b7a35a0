"""A dead agent comes back during a run, and is no part of the run."""

import os
import signal
import sys
from pathlib import Path

from distconsole_agent.supervisor import proctree
from distconsole_agent.supervisor.spawning import agent_lives
from fakes.agents import listener
from fakes.shims import RunUnderTest, gone, wait_until


def test_a_dead_agent_is_started_again_and_outlives_the_run(tmp_path: Path) -> None:
    node_dir = tmp_path / "node0"
    argv = [sys.executable, "-m", "distconsole_agent", "agent", "--node-dir", str(node_dir)]
    lock, socket = (str(node_dir / f"agent-dev.{what}") for what in ("lock", "sock"))
    with RunUnderTest(tmp_path, ["sleep", "600"], agent_argv=argv, run="r-agent") as run:
        try:
            run.start()
            first = wait_until("an agent", lambda: listener(socket))
            assert agent_lives(lock)
            os.kill(first, signal.SIGKILL)
            wait_until("its end", lambda: gone(first))
            # Other threads of the first may hold its socket after its main thread is a zombie.
            second = wait_until("another", lambda: (pid := listener(socket)) != first and pid)
            assert agent_lives(lock)
            stat = proctree.read_process(second)
            assert stat.ppid != run.shims[0].process.pid
            run.shims[0].ask(op="stop", reason="user")
            assert run.verdict()["state"] == "stopped"
            assert not gone(second)
        finally:
            if pid := listener(socket):
                os.kill(pid, signal.SIGKILL)
                wait_until("the agent's end", lambda: gone(pid))


def test_a_free_lock_means_that_no_agent_lives(tmp_path: Path) -> None:
    assert not agent_lives(str(tmp_path / "lock"))
    assert agent_lives(str(tmp_path / "no" / "lock"))
