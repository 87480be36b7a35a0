"""The N-th system call of agent or shim fails, while a run is prepared, started, followed, listed and forgotten.

Whatever is refused then: no folder of a run is lost, no rank is killed, the agent answers again, and
nothing waits for ever. ``SWEEP=50`` tries every N up to that; else a few are.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.agents import AgentNode, Bridge, launch, spec_of
from fakes.shims import wait_until

CALLS = {
    "openat": "EMFILE",
    "write": "ENOSPC",
    "fsync": "EIO",
    "rename": "EIO",
    "accept4": "EMFILE",
}
WRITTEN = (
    *("spec.json.new", "ended.json.new", "verdict.json.new", "shim.jsonl", "shim.pid"),
    *("journal/000001.jsonl", "logs/rank-0.out", "logs/rank-0.err"),
)
SWEEP = int(os.environ.get("SWEEP", "0"))
NUMBERS = range(1, SWEEP + 1) if SWEEP else (1, pytest.param(3, marks=pytest.mark.campaign))
RANK = "import os, time\nwhile not os.path.exists({done!r}): time.sleep(0.01)\nprint('well')"

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.skipif(os.getuid() != 0, reason="only root may attach to other processes"),
]


@contextlib.contextmanager
def failing(pid: int, call: str, number: int | str, folder: Path) -> Iterator[None]:
    """Let the N-th such call of each thread of a process fail, and of what it forks, until an exec.

    With "1+" every one does.

    Of writes only those to the files of the run in ``folder``: no pipe of a process has no room.
    """
    inject = f"inject={call}:error={CALLS[call]}:when={number}"
    words = ["strace", "-f", "-b", "execve", "-o", os.devnull, "-e", f"trace={call}", "-e", inject]
    if call == "write":
        words += [word for name in WRITTEN for word in ("-P", str(folder / name))]
    with subprocess.Popen([*words, "-p", str(pid)], stderr=subprocess.PIPE) as tracer:
        line = tracer.stderr.readline()
        if b"ttach" in line and b"attached" not in line:
            pytest.skip(f"strace may not attach here: {line.decode()}")
        try:
            yield
        finally:
            tracer.terminate()
            tracer.communicate()


class Operator:
    """Asks again where an agent has died of the error, and in peace where it only refuses."""

    def __init__(self, node: AgentNode, calm: Callable[[], object]) -> None:
        self._node = node
        self._calm = calm
        self._bridge = node.bridge()

    def ask(self, op: str, **arguments: object) -> dict[str, Any]:
        for _ in range(5):
            try:
                return self._bridge.ask(op, **arguments)
            except (AssertionError, BrokenPipeError, ValueError):
                self._bridge = wait_until("an agent", self._again)
        raise AssertionError(f"the agent does not answer {op}")

    def done(self, op: str, **arguments: object) -> dict[str, Any]:
        answer = self.ask(op, **arguments)
        if "result" not in answer:
            assert answer["error"]["message"]
            self._calm()
            answer = self.ask(op, **arguments)
        return dict(answer["result"])

    def _again(self) -> Bridge | None:
        bridge = self._node.bridge()
        return bridge if bridge.greeting.startswith(b"distconsole-bridge") else None


@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("target", ["agent", "shim"])
def test_an_error_of_one_call_loses_nothing(
    node: AgentNode, tmp_path: Path, target: str, call: str, number: int
) -> None:
    done = tmp_path / "done"
    spec = spec_of("a-run", [RANK.format(done=str(done))])
    folder = node.node_dir / "runs" / "a-run"
    with contextlib.ExitStack() as traced:
        operator = Operator(node, traced.close)
        operator.done("ping")
        if target == "agent":
            traced.enter_context(failing(node.agent().pid, call, number, folder))
        prepared = operator.ask("prepare", run="a-run", spec=spec)
        if "error" in prepared:  # refused in words, and nothing of it is left
            assert prepared["error"]["message"]
            # Unless the agent died of the error before it answered: then the next one has the run.
            is_there = prepared["error"]["code"] == "run_exists"
            assert (folder / "shim.sock").exists() == is_there
            return
        if target == "shim":
            shim = int((folder / "shim.pid").read_text().split()[0])
            traced.enter_context(failing(shim, call, number, folder))
        ports = {name: prepared["result"][name] for name in ("coordinator", "master_port")}
        started = operator.ask("start", run="a-run", coordinator_secret="", **ports)
        refused = "error" in started and started["error"]["code"] == "start_failed"
        if "error" in started and not refused:
            operator.done("start", run="a-run", coordinator_secret="", **ports)
        operator.ask("runs")
        assert (folder / "spec.json").exists()
        done.touch()
        ended = wait_until("its end", lambda: _end(operator))
        assert ended["state"] == ("failed" if refused else "succeeded"), (started, ended)
    if not refused:
        assert "well\n" in (folder / "logs" / "rank-0.out").read_text()
    assert operator.done("forget", run="a-run") == {"forgotten": True}
    assert not folder.exists()


@pytest.mark.timeout(180)
def test_a_disk_that_keeps_nothing_for_good_is_told_once(node: AgentNode, tmp_path: Path) -> None:
    done = tmp_path / "done"
    bridge = node.bridge()
    launch(bridge, spec_of("a-run", [RANK.format(done=str(done))]))
    folder = node.node_dir / "runs" / "a-run"
    with failing(node.agent().pid, "fsync", "1+", folder):
        done.touch()
        entries = list(bridge.follow("a-run"))
        operator = Operator(node, lambda: None)
        assert wait_until("its end", lambda: _end(operator))["state"] == "succeeded"
        assert not (folder / "ended.json").exists()
    checks = [entry["check"] for entry in entries if entry["kind"] == "note"]
    assert checks.count("run.record_cut") == 1
    assert [(e["state"], e["exit_code"]) for e in entries[-1:]] == [("succeeded", 0)]
    assert operator.done("forget", run="a-run") == {"forgotten": True}
    assert not folder.exists()


def _end(operator: Operator) -> dict[str, Any] | None:
    listed = operator.done("runs")["runs"]
    return next((run for run in listed if run["state"] not in ("prepared", "running")), None)
