"""Descriptors: agent and shim take all that are allowed, and what they start has the user's limit."""

import contextlib
import socket
import sys
from pathlib import Path

import psutil

from fakes.agents import AgentNode, Bridge, launch, listener, spec_of
from fakes.shims import RunUnderTest, wait_until

HARD = 512
TELL = "import resource; print('limit', resource.getrlimit(resource.RLIMIT_NOFILE))"


def limited(soft: int, hard: int = HARD) -> list[str]:
    return ["prlimit", f"--nofile={soft}:{hard}", sys.executable, "-m", "distconsole_agent"]


def test_agent_and_shim_take_what_they_may_and_ranks_the_users_limit(tmp_path: Path) -> None:
    with contextlib.closing(AgentNode(tmp_path / "node", limited(128))) as node:
        bridge = node.bridge()
        launch(bridge, spec_of("a-run", [TELL + "; import time; time.sleep(600)"]))
        line = next(e["text"] for e in bridge.follow("a-run") if e["kind"] == "log")
        assert line == f"limit (128, {HARD})\n"
        shim = (node.node_dir / "runs" / "a-run" / "shim.pid").read_text().split()[0]
        for pid in (node.agent().pid, int(shim)):
            assert psutil.Process(pid).rlimit(psutil.RLIMIT_NOFILE) == (HARD, HARD)
        facts = bridge.done("probe", group="os", args={})["facts"]
        assert facts["limits"]["nofile"] == [128, HARD]


def test_an_agent_that_a_shim_starts_has_the_users_limit(tmp_path: Path) -> None:
    with contextlib.closing(AgentNode(tmp_path / "node", limited(128))) as node:
        bridge = node.bridge()
        launch(bridge, spec_of("a-run", ["import time; time.sleep(600)"]))
        node.kill_agent()
        wait_until("another agent", lambda: listener(str(node.node_dir / "agent-dev.sock")))
        launch(node.bridge(), spec_of("other-run", [TELL]))
        entries = node.bridge().entries("other-run")
        assert next(e["text"] for e in entries if e["kind"] == "log") == f"limit (128, {HARD})\n"


def test_an_agent_without_descriptors_says_so_and_serves_again(tmp_path: Path) -> None:
    with contextlib.closing(AgentNode(tmp_path / "node", limited(40, 40))) as node:
        first = node.bridge()
        assert first.done("ping")
        told: list[str] = []
        crowd: list[Bridge] = []
        while not told and len(crowd) < 60:
            bridge = node.bridge()
            crowd.append(bridge)
            try:
                bridge.send("ping")
                answer = bridge.read()
            except BrokenPipeError:
                answer = bridge.read()
            if answer is not None and "error" in answer:
                told.append(answer["error"]["message"])
        assert told == ["this node's agent has too few descriptors left"]
        assert first.done("ping")
        for bridge in crowd:
            bridge.close()
        wait_until("others are served again", lambda: node.bridge().ask("ping").get("result"))


def test_a_shim_without_descriptors_is_still_stopped(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], nodes=2) as run, contextlib.ExitStack() as crowd:
        run.start()
        shim = run.shims[0]
        shim.pid(0)
        coordinator = shim.ask(op="status")["coordinator"]
        process = psutil.Process(shim.process.pid)
        have = process.num_fds()
        process.rlimit(psutil.RLIMIT_NOFILE, (have + 8, have + 8))
        at = (coordinator["address"], coordinator["port"])
        sockets = [crowd.enter_context(socket.create_connection(at)) for _ in range(20)]
        wait_until("some are turned away", lambda: any(map(is_over, sockets)))
        answer = shim.ask(op="stop", reason="user", grace=1.0)
        assert answer == {"ok": True, "stopping": True}
        assert run.verdict()["state"] == "stopped"


def is_over(sock: socket.socket) -> bool:
    """Return whether the other side closed a connection without a word."""
    sock.setblocking(False)
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
