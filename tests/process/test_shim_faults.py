"""Nodes that vanish: a power cut and a cut training network between real hosts.

One test, because each fault takes the forty seconds that a node is waited for.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distconsole_agent import unix
from fakes.shims import REPOSITORY, wait_until
from testbed import Host, Testbed

FOLDER = "/tmp/shimtest/runs"
WAIT_SECONDS = 75.0


class HostRun:
    """One run with one ``sleep`` a host; the shims are started as the agent starts them."""

    def __init__(self, hosts: list[Host], stack: contextlib.ExitStack) -> None:
        self.hosts = hosts
        self.run = f"run-{secrets.token_hex(4)}"
        nodes = [
            {"host": host.name, "address": host.train_address, "ranks": [rank]}
            for rank, host in enumerate(hosts)
        ]
        common = {"run": self.run, "secret": secrets.token_hex(32), "nodes": nodes, "grace": 5.0}
        for index, host in enumerate(hosts):
            ranks = [{"rank": index, "local_rank": 0, "argv": ["sleep", "600"], "env": {}}]
            host.exec(["mkdir", "-p", f"{FOLDER}/{self.run}"])
            self._path(host, "spec.json").write_text(
                json.dumps({**common, "node_index": index, "ranks": ranks, "watch": False})
            )
            shim = host.popen(
                [
                    sys.executable,
                    "-m",
                    "distconsole_agent",
                    "shim",
                    "--run",
                    f"{FOLDER}/{self.run}",
                ],
                env={"PYTHONPATH": str(REPOSITORY / "agents")},
                stdin=subprocess.DEVNULL,
            )
            stack.callback(_reap, shim)
            wait_until("its socket", self._path(host, "shim.sock").exists)
        status = self.ask(hosts[0], op="status")
        for host in hosts:
            self.ask(
                host,
                op="start",
                coordinator=status["coordinator"],
                master_port=status["master_port"],
            )

    def ask(self, host: Host, **request: Any) -> dict[str, Any]:
        with unix.connect(str(self._path(host, "shim.sock")), 10) as sock:
            sock.sendall(json.dumps(request).encode() + b"\n")
            with sock.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        return answer

    def end(self, host: Host) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Wait for the run's end on a host; return its verdict and its notes."""
        wait_until(
            f"the end on {host.name}",
            lambda: self._events(host)[-1]["event"] == "ended",
            WAIT_SECONDS,
        )
        events = self._events(host)
        verdict = next(event for event in events if event["event"] == "verdict")
        return verdict, [event for event in events if event["event"] == "note"]

    def _events(self, host: Host) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in self._path(host, "shim.jsonl").read_text().splitlines()
        ]

    def _path(self, host: Host, name: str) -> Path:
        return host.path(f"{FOLDER}/{self.run}/{name}")


@pytest.mark.testbed
def test_a_node_without_power_or_network_fails_the_run_and_nothing_stays() -> None:
    with Testbed(4) as bed, contextlib.ExitStack() as stack:
        powered, linked = HostRun(bed.hosts[:2], stack), HostRun(bed.hosts[2:], stack)
        for host in bed.hosts:
            wait_until("its rank", lambda host=host: host.processes("sleep 600"))
        bed.hosts[1].power_cut()
        bed.hosts[3].link_down("train")
        for run, host, lost in (
            (powered, bed.hosts[0], bed.hosts[1]),
            (linked, bed.hosts[2], bed.hosts[3]),
            (linked, bed.hosts[3], bed.hosts[2]),
        ):
            verdict, notes = run.end(host)
            assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
            assert verdict["first_failure"]["error"] == f"node {lost.name} lost"
            assert verdict["first_failure"]["host"] == lost.name
            assert [note["check"] for note in notes] == ["run.node_lost"]
            assert not host.processes("sleep 600")


def _reap(process: subprocess.Popen[Any]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    process.kill()
    process.wait()
