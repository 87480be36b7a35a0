"""Real shims of one run, each with its own folder and loopback address, driven by their sockets.

They stand on one machine and are the real program; what is missing is the agent that starts them.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from distconsole_agent.supervisor import proctree
from distconsole_agent.system import unix

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.01


def wait_until(what: str, condition: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """Return the first true value of ``condition``; fail when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for: {what}")
        time.sleep(POLL_SECONDS)
    return value


class ShimUnderTest:
    """One node's shim."""

    def __init__(
        self,
        run_dir: Path,
        spec: dict[str, Any],
        python: str,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.run_dir = run_dir
        self.spec = spec
        for folder in (run_dir.parent.parent, run_dir.parent, run_dir):
            folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        (run_dir / "spec.json").write_text(json.dumps(spec))
        self.process = subprocess.Popen(
            [python, "-m", "distconsole_agent", "shim", "--run", str(run_dir)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY / "agents"), **env},
        )
        wait_until("the shim's socket", lambda: (run_dir / "shim.sock").exists())

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to one request."""
        with unix.connect(str(self.run_dir / "shim.sock"), DEADLINE_SECONDS) as sock:
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return what ``shim.jsonl`` holds."""
        lines = (self.run_dir / "shim.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def event(self, kind: str, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Wait for an event of this kind and return the first."""
        found: list[dict[str, Any]] = wait_until(
            f"{kind} in {self.run_dir}", lambda: self.events(kind), seconds
        )
        return found[0]

    def wait(self, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Wait until the shim has left by itself and return its verdict."""
        assert self.process.wait(seconds) == 0
        assert self.events()[-1]["event"] == "ended"
        assert not proctree.pids_of_run(str(self.run_dir))
        verdict: dict[str, Any] = json.loads((self.run_dir / "verdict.json").read_text())
        assert {key: self.event("verdict")[key] for key in verdict} == verdict
        return verdict

    def log(self, rank: int, stream: str = "out") -> str:
        """Return what a rank printed."""
        return (self.run_dir / "logs" / f"rank-{rank}.{stream}").read_text()

    def pid(self, rank: int) -> int:
        """Wait for a rank's start and return its pid."""
        started = wait_until(
            f"rank {rank}", lambda: [e for e in self.events("started") if e["rank"] == rank]
        )
        return int(started[0]["pid"])

    def destroy(self) -> None:
        """Leave nothing, whatever the test left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE_SECONDS)
        assert not proctree.kill_run(str(self.run_dir))


class RunUnderTest:
    """One run over as many shims as there are nodes; ``argv`` is each rank's command.

    Node ``i`` has the address 127.0.0.(i+1). ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and
    ``MASTER_PORT`` are set as the torch launcher sets them. ``node_env`` is what each node's shim has
    in its environment beside ours.
    """

    def __init__(
        self,
        folder: Path,
        argv: Sequence[str],
        nodes: int = 1,
        ranks_per_node: int = 1,
        python: str = sys.executable,
        node_env: Sequence[Mapping[str, str]] = (),
        **spec: Any,
    ) -> None:
        self.shims: list[ShimUnderTest] = []
        self._folder = folder
        self._python = python
        world = nodes * ranks_per_node
        placed = [
            {
                "host": f"host{index}",
                "address": f"127.0.0.{index + 1}",
                "ranks": list(range(index * ranks_per_node, (index + 1) * ranks_per_node)),
            }
            for index in range(nodes)
        ]
        common = {
            "run": f"run-{secrets.token_hex(4)}",
            "name": "test",
            "secret": secrets.token_hex(32),
            "nodes": placed,
            "world_size": world,
            "launcher": "torch",
            "script": "script.py",
            "workdir": str(folder),
            "setup": None,
            "env": {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": "{port}",
                "WORLD_SIZE": str(world),
                "TORCHELASTIC_RESTART_COUNT": "0",
            },
            "unset": [],
            "engine_ranks": True,
            "watch": False,
            "grace": 10.0,
            "created": time.time(),
            **spec,
        }
        for index, node in enumerate(placed):
            ranks = [
                {
                    "rank": rank,
                    "local_rank": local,
                    "argv": list(argv),
                    "env": {"RANK": str(rank), "LOCAL_RANK": str(local)},
                }
                for local, rank in enumerate(node["ranks"])
            ]
            run_dir = folder / f"node{index}" / "runs" / str(common["run"])
            own = {**common, "node_index": index, "ranks": ranks}
            env = node_env[index] if node_env else {}
            self.shims.append(ShimUnderTest(run_dir, own, python, env))

    def __enter__(self) -> "RunUnderTest":
        return self

    def __exit__(self, *_exc: object) -> None:
        for shim in self.shims:
            shim.destroy()

    def start(self) -> list[dict[str, Any]]:
        """Start the run on every node; return the answers."""
        status = self.shims[0].ask(op="status")
        return [
            shim.ask(
                op="start", coordinator=status["coordinator"], master_port=status["master_port"]
            )
            for shim in self.shims
        ]

    def verdict(self, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Wait for the end on every node; return the verdict that they agree on."""
        verdicts = [shim.wait(seconds) for shim in self.shims]
        assert all(verdict == verdicts[0] for verdict in verdicts)
        return verdicts[0]

    def await_links(self) -> None:
        """Wait until every other shim has a connection to the first node's coordinator."""
        port = self.shims[0].ask(op="status")["coordinator"]["port"]
        for shim in self.shims[1:]:
            process = psutil.Process(shim.process.pid)
            wait_until("a link", lambda process=process: _is_linked(process, port))

    def complete(self) -> dict[str, Any]:
        """Start the run, and return its verdict."""
        self.start()
        return self.verdict()


class StartedRun(RunUnderTest):
    """A run whose ranks are started with the block."""

    def __enter__(self) -> "StartedRun":
        with ExitStack() as undo:
            undo.push(self.__exit__)
            self.start()
            undo.pop_all()
        return self


def _is_linked(process: psutil.Process, port: int) -> bool:
    return any(
        each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
        for each in process.net_connections("tcp")
    )


def script(folder: Path, text: str, name: str = "script.py", mode: int = 0o644) -> str:
    """Write a script and return its path."""
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def gone(pid: int) -> bool:
    """Return whether a process has ended (a zombie has)."""
    stat = proctree.read_process(pid)
    return stat is None or stat.state in "ZX"


def listens(address: Mapping[str, Any]) -> bool:
    """Return whether somebody listens there."""
    with socket.socket() as sock:
        return sock.connect_ex((address["address"], address["port"])) == 0
