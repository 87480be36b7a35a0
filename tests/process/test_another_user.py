"""Another user of a run's node: what sockets, files and rings of a real agent and shim keep from him."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from distconsole_agent.node_folder.folders import ring_folders
from fakes.agents import AgentNode, launch, spec_of
from fakes.shims import wait_until
from suite.programs import run_to_end

AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c"]

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root, and setpriv (Debian: util-linux), to be another user",
)

ASK = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.settimeout(10)
    sock.connect(sys.argv[1])
    try:
        sock.sendall(sys.argv[2].encode() + b"\\n")
        print(sock.recv(100).decode())
    except (BrokenPipeError, ConnectionResetError):
        print()
"""
KILL = '{"id": 1, "op": "kill", "run": "a-run"}'


@pytest.fixture
def open_node() -> Iterator[AgentNode]:
    """A node with a run that goes on, in a folder that others may look into."""
    with TemporaryDirectory(prefix="dc-user-") as place:
        Path(place).chmod(0o755)
        node = AgentNode(Path(place) / "node")
        launch(node.bridge(), spec_of("a-run", ["import signal; signal.pause()"]))
        yield node
        node.close()


def nobody(text: str, *words: object) -> subprocess.CompletedProcess[str]:
    return run_to_end([*AS_NOBODY, text, *map(str, words)], cwd="/")


def sockets_of(node: AgentNode) -> list[Path]:
    found = [path for path in node.node_dir.rglob("*") if path.is_socket()]
    assert {path.name.partition("-")[0] for path in found} == {"agent", "shim.sock"}
    return found


def test_nothing_of_a_run_is_to_be_reached(open_node: AgentNode) -> None:
    files = [path for path in open_node.node_dir.rglob("*") if path.is_file()]
    rings = [Path(folder) for _run, folder in ring_folders(str(open_node.node_dir))]
    assert {"spec.json", "shim.jsonl", "rank-0.out"} <= {path.name for path in files}
    for path in (*sockets_of(open_node), *files, *rings):
        done = nobody("import os, sys; os.stat(sys.argv[1])", path)
        assert "PermissionError" in done.stderr, path


def test_sockets_answer_no_other_user_where_every_folder_is_open(open_node: AgentNode) -> None:
    bridge = open_node.bridge()
    for path in (open_node.node_dir, *open_node.node_dir.rglob("*")):
        if path.is_dir() or path.is_socket():
            path.chmod(0o777)
    for path in sockets_of(open_node):
        done = nobody(ASK, path, KILL)
        assert (done.stdout.strip(), done.stderr) == ("", ""), path
    wait_until("the run", lambda: bridge.done("runs")["runs"][0]["state"] == "running")
