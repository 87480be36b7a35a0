"""The bridge: finds or starts the one agent, copies bytes, and ends with its connection."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fakes.agents import AgentNode, launch, spec_of
from fakes.shims import wait_until


def refusal(node_dir: Path) -> tuple[dict[str, str], int]:
    """Run a bridge that cannot serve; return its error and exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "distconsole_agent", "bridge", "--node-dir", str(node_dir)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=30,
        check=False,
    )
    (line,) = done.stdout.splitlines()
    error: dict[str, str] = json.loads(line)["error"]
    return error, done.returncode


def test_bridges_that_race_start_one_agent_and_say_who_it_is(node: AgentNode) -> None:
    with ThreadPoolExecutor(6) as pool:
        bridges = list(pool.map(lambda _: node.bridge(), range(6)))
    for bridge in bridges:
        assert bridge.greeting == f"distconsole-bridge 1 {sys.executable}\n".encode()
        hello = bridge.done("hello", protocol=1)
        assert hello["agent_pid"] == node.agent().pid
        assert hello["node_dir"] == str(node.node_dir)
        assert any(each["address"] == "127.0.0.1" for each in hello["addresses"])
    assert node.node_dir.stat().st_mode & 0o777 == 0o700


def test_a_bridge_ends_with_its_connection(node: AgentNode) -> None:
    bridge = node.bridge()
    bridge.process.send_signal(signal.SIGHUP)
    assert bridge.process.wait(10) == -signal.SIGHUP
    other = node.bridge()
    node.kill_agent()
    assert other.process.wait(10) == 0


def test_the_last_request_before_the_end_arrives(node: AgentNode) -> None:
    run = node.node_dir / "runs" / "some-run"
    with node.bridge() as bridge:
        run.mkdir()
        (run / "ended.json").write_text("{}")
        bridge.send("forget", run="some-run")
    wait_until("the run is forgotten", lambda: not run.exists())


def test_an_agent_that_died_is_started_again(node: AgentNode) -> None:
    with node.bridge() as bridge:
        first = bridge.done("hello", protocol=1)["agent_pid"]
    node.kill_agent()
    with node.bridge() as bridge:
        assert bridge.done("hello", protocol=1)["agent_pid"] != first


def test_an_idle_agent_leaves_and_takes_its_socket_along(node: AgentNode) -> None:
    agent = node.start_agent(1.0)
    assert agent.wait(20) == 0
    assert not list(node.node_dir.glob("*.sock"))


def test_an_agent_with_a_console_stays(node: AgentNode) -> None:
    agent = node.start_agent(3.0)
    wait_until("the socket", lambda: list(node.node_dir.glob("*.sock")))
    with node.bridge() as bridge:
        for _ in range(3):
            list(bridge.messages(bridge.send("probe", group="nonsense", args={})))
        assert bridge.done("ping")["time_ns"] > 0
        assert agent.poll() is None
    assert agent.wait(20) == 0


def test_a_second_agent_leaves_at_once(node: AgentNode) -> None:
    with node.bridge():
        assert node.start_agent(600.0).wait(20) == 0
        assert len(node.agents()) == 1


def test_sigterm_ends_an_agent_in_good_order(node: AgentNode) -> None:
    agent = node.start_agent(600.0)
    wait_until("the socket", lambda: list(node.node_dir.glob("*.sock")))
    agent.terminate()
    assert agent.wait(20) == 0
    assert not list(node.node_dir.glob("*.sock"))


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    node = AgentNode(tmp_path / ("long" * 30) / ("path" * 20))
    with node.bridge() as bridge:
        assert bridge.done("ping")
    node.close()


def test_a_folder_open_to_others_a_link_and_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    error, code = refusal(tmp_path / "open")
    assert (error["code"], code) == ("storage", 1)
    assert "0755" in error["message"]
    assert "chmod 700" in error["hint"]
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        assert "not a folder" in refusal(tmp_path / name)[0]["message"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to give a folder away")
def test_anothers_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", 12345, 12345)
    error, _ = refusal(tmp_path / "theirs")
    assert "belongs to uid 12345, not to uid 0" in error["message"]
    assert error["hint"] == "set node_dir to a local folder of your own"
    assert list((tmp_path / "theirs").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("size=32m,noexec,mode=755", "noexec"),
        ("size=1m,mode=755", "full"),
        ("size=32m,nr_inodes=2,mode=755", "full|space"),
        ("size=32m,ro,mode=755", "ead-only"),
    ],
)
def test_a_filesystem_of_no_use_is_refused(tmp_path: Path, options: str, words: str) -> None:
    (tmp_path / "m").mkdir()
    node_dir = tmp_path / "m" / "node"
    script = f'mount -t tmpfs -o {options} tmpfs {tmp_path / "m"} && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, "-m", "distconsole_agent",
         "bridge", "--node-dir", str(node_dir)],
        stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False,
    )  # fmt: skip
    if b"unshare" in done.stderr or b"mount:" in done.stderr:
        pytest.skip("mount namespaces are not allowed here")
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "storage"
    assert any(word in error["message"] for word in words.split("|")), error


def test_unknown_words_are_refused() -> None:
    for words in (["fly"], ["bridge", "--node-dir"], ["bridge", "--speed", "1"], []):
        done = subprocess.run(
            [sys.executable, "-m", "distconsole_agent", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 2
        assert b"usage" in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="needs the right to make namespaces")
@pytest.mark.parametrize("space", ["--pid", "--net"])
def test_another_host_with_the_same_folder_has_its_own_agent(node: AgentNode, space: str) -> None:
    here = node.bridge().done("hello", protocol=1)
    apart = ["unshare", "--mount", "--fork", "--kill-child", space]
    apart += ["--mount-proc"] if space == "--pid" else []
    other = AgentNode(node.node_dir, [*apart, *node.program])
    with other.bridge() as bridge:
        there = bridge.done("hello", protocol=1)
        assert there["node_dir"] == f"{here['node_dir']}/host-2"
        spec = spec_of("their-run", ["import time; time.sleep(600)"])
        launch(bridge, spec)
        assert [run["run"] for run in bridge.done("runs")["runs"]] == ["their-run"]
        assert node.bridge().done("runs") == {"runs": []}
        assert bridge.done("kill", run="their-run") == {"killing": True}
        assert bridge.entries("their-run")[-1]["state"] == "stopped"
