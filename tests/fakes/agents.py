"""Real agents behind real bridges, spoken to line by line; what is missing is the console.

Nothing of it outlives ``AgentNode``: agents, shims and ranks of its folder are killed.
"""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import SO_PEERCRED, SOL_SOCKET
from typing import Any

import psutil

from distconsole_agent.node_folder.folders import remove_tree, ring_folders
from distconsole_agent.supervisor import proctree
from distconsole_agent.system import unix
from fakes.shims import wait_until

ANSWER_SECONDS = 60.0


class Bridge:
    """One bridge process: a console's side of the protocol."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, bufsize=0
        )
        self._lines = os.fdopen(os.dup(self.process.stdout.fileno()), "rb")
        self.greeting = self._lines.readline()
        self._asked = 0
        self._kept: list[dict[str, Any]] = []

    def __enter__(self) -> "Bridge":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait(ANSWER_SECONDS)
        self._lines.close()
        self.process.stdout.close()

    def send(self, op: str, **arguments: Any) -> int:
        """Ask, and return the request's number."""
        self._asked += 1
        self.write(json.dumps({"id": self._asked, "op": op, **arguments}).encode() + b"\n")
        return self._asked

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def read(self) -> dict[str, Any] | None:
        """Return the next message; None at the end."""
        line = self._lines.readline()
        return json.loads(line) if line.endswith(b"\n") else None

    def messages(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the messages of one request until its answer, and keep those of others."""
        while True:
            mine = [message for message in self._kept if message["id"] == number]
            self._kept = [message for message in self._kept if message["id"] != number]
            for message in mine:
                yield message
                if "item" not in message:
                    return
            message_or_end = self.read()
            if message_or_end is None:
                return
            self._kept.append(message_or_end)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and return the answer with its ``result`` or ``error``."""
        answers = list(self.messages(self.send(op, **arguments)))
        assert answers, f"the bridge ended instead of answering {op}"
        return answers[-1]

    def done(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and return the result."""
        answer = self.ask(op, **arguments)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def refused(self, op: str, **arguments: Any) -> str:
        """Ask, and return the code that it was refused with."""
        answer = self.ask(op, **arguments)
        assert "error" in answer, answer
        assert answer["error"]["message"]
        return str(answer["error"]["code"])

    def follow(self, run: str, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield a run's entries until its end or that of the connection."""
        for message in self.messages(self.send("follow", run=run, after=after)):
            yield from message.get("item", {}).get("entries", [])

    def entries(self, run: str, after: int = 0) -> list[dict[str, Any]]:
        return list(self.follow(run, after))


class AgentNode:
    """A node folder and its agents.

    Args:
        node_dir: The folder.
        program: The words that start the program; the package unless given.
    """

    def __init__(self, node_dir: Path, program: list[str] | None = None) -> None:
        self.node_dir = node_dir
        self.program = program or [sys.executable, "-m", "distconsole_agent"]
        self.env = dict(os.environ)
        self._bridges: list[Bridge] = []

    def bridge(self) -> Bridge:
        bridge = Bridge([*self.program, "bridge", "--node-dir", str(self.node_dir)], self.env)
        self._bridges.append(bridge)
        return bridge

    def start_agent(self, idle_seconds: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self.program, "agent", "--node-dir", str(self.node_dir), "--idle-seconds", str(idle_seconds)],
            env=self.env,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def agents(self) -> list[psutil.Process]:
        """Return the agents of this folder that live."""
        found = []
        for process in self._processes():
            with contextlib.suppress(psutil.Error):  # it may end meanwhile
                if "agent" in process.cmdline():
                    found.append(process)
        return found

    def agent(self) -> psutil.Process:
        """Return the one agent."""
        (agent,) = wait_until("one agent", lambda: [a for a in [self.agents()] if len(a) == 1])[0]
        assert isinstance(agent, psutil.Process)
        return agent

    def kill_agent(self) -> None:
        for agent in self.agents():
            agent.kill()
            _wait_gone(agent)

    def close(self) -> None:
        """End everything of this folder."""
        for bridge in self._bridges:
            bridge.close()
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
            _wait_gone(process)
        runs = self.node_dir / "runs"
        for folder in runs.iterdir() if runs.is_dir() else []:
            proctree.kill_run(str(folder))
        for _run, rings in ring_folders(str(self.node_dir)):
            remove_tree(rings)

    def _processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
            except psutil.Error:
                continue
            verb = {"agent", "shim"} & set(words)
            if verb and any(word.startswith(str(self.node_dir)) for word in words):
                found.append(process)
        return found


def listener(path: str) -> int:
    """Return the process that listens on a socket; 0 if none does."""
    with contextlib.suppress(OSError), unix.connect(path, 5) as sock:
        return int(struct.unpack("3i", sock.getsockopt(SOL_SOCKET, SO_PEERCRED, 12))[0])
    return 0


def _wait_gone(process: psutil.Process) -> None:
    def gone() -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_until(f"the end of {process}", gone)


def spec_of(run: str, scripts: list[str], **changed: Any) -> dict[str, Any]:
    """Return the spec of a run on one node whose ranks are Python ``scripts``."""
    ranks = range(len(scripts))
    return {
        "run": run,
        "name": "a test",
        "secret": "00" * 32,
        "node_index": 0,
        "nodes": [{"host": "here", "address": "127.0.0.1", "ranks": list(ranks)}],
        "world_size": len(scripts),
        "launcher": "torch",
        "script": "script.py",
        "workdir": None,
        "setup": None,
        "env": {},
        "unset": [],
        "ranks": [
            {"rank": rank, "local_rank": rank, "argv": [sys.executable, "-u", "-c", scripts[rank]], "env": {}}
            for rank in ranks
        ],
        "engine_ranks": True,
        "watch": False,
        "grace": 5.0,
        "created": time.time(),
        **changed,
    }  # fmt: skip


def launch(bridge: Bridge, spec: dict[str, Any]) -> None:
    """Prepare and start a run."""
    prepared = bridge.done("prepare", run=spec["run"], spec=spec)
    bridge.done(
        "start",
        run=spec["run"],
        coordinator=prepared["coordinator"],
        coordinator_secret=spec["secret"],
        master_port=prepared["master_port"],
    )
