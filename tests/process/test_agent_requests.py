"""Requests: side by side, bounded, and a bad one harms nobody else."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from distconsole.rpc.frames import Hello
from distconsole_agent.contract import limits, protocol
from distconsole_agent.telemetry.sampling import MAX_BUSY
from fakes.agents import AgentNode, Bridge, launch, spec_of
from fakes.shims import wait_until

pytestmark = pytest.mark.xdist_group("agent_requests")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentNode]:
    """A node whose agent answers all tests of this file."""
    node = AgentNode(tmp_path_factory.mktemp("requests") / "node")
    yield node
    node.close()


@pytest.fixture
def bridge(node: AgentNode, nothing_left: None) -> Iterator[Bridge]:
    with node.bridge() as bridge:
        yield bridge


def test_hello_has_every_field(bridge: Bridge) -> None:
    hello = bridge.done("hello", protocol=protocol.PROTOCOL_VERSION)
    assert set(hello) >= set(Hello.__struct_fields__)
    assert hello["cpus"] > 0
    assert hello["mem_total"] > 0
    assert {"iface", "address", "prefix", "family", "up", "loopback"} == set(hello["addresses"][0])


MEANINGLESS: list[tuple[str, dict[str, object], str]] = [
    ("fly", {}, "unknown_op"),
    ("hello", {"protocol": 99}, "bad_request"),
    ("follow", {"run": "no-such"}, "no_such_run"),
    ("follow", {"run": "../../etc"}, "bad_request"),
    ("follow", {}, "bad_request"),
    ("stop", {"run": "no-such", "reason": "user"}, "no_such_run"),
    ("stop", {"run": "no-such", "reason": "because"}, "bad_request"),
    ("kill", {"run": "no-such"}, "no_such_run"),
    ("start", {"run": "no-such"}, "no_such_run"),
    ("forget", {"run": "no-such"}, "no_such_run"),
    ("prepare", {"run": "a-run", "spec": {}}, "bad_request"),
    ("prepare", {"run": "a-run", "spec": []}, "bad_request"),
    ("prepare", {"run": "A RUN", "spec": {}}, "bad_request"),
    ("prepare", {"run": "run-one", "spec": spec_of("run-two", [""])}, "bad_request"),
    ("watch", {"interval": "fast"}, "bad_request"),
    ("probe", {"group": 7}, "bad_request"),
    ("probe", {"group": "no such group", "args": {}}, "bad_request"),
]


def test_what_means_nothing_is_refused(bridge: Bridge) -> None:
    for op, arguments, code in MEANINGLESS:
        assert bridge.refused(op, **arguments) == code, (op, arguments)
    assert bridge.done("ping")


def test_a_malformed_line_ends_only_its_connection(node: AgentNode, bridge: Bridge) -> None:
    for line in (
        b"nonsense\n",
        b"[1]\n",
        b'{"op": "ping"}\n',
        b'{"id": true, "op": "ping"}\n',
        b"\n",
    ):
        with node.bridge() as bad:
            bad.write(line)
            message = bad.read()
            assert message is not None, line
            assert message["error"]["code"] == "bad_request"
            assert bad.read() is None
        assert bridge.done("ping")


def test_a_line_too_long_ends_its_connection(node: AgentNode, bridge: Bridge) -> None:
    try:
        bridge.write(b'{"id": 1, "op": "' + b"x" * (protocol.MAX_LINE_BYTES + 100_000))
    except BrokenPipeError:
        pass
    else:
        message = bridge.read()
        assert message is None or message["error"]["code"] == "bad_request"
    with node.bridge() as other:
        assert other.done("ping")


def test_requests_run_side_by_side(bridge: Bridge) -> None:
    watch = bridge.send("watch", interval=0.2)
    assert bridge.done("ping")
    assert bridge.done("runs") == {"runs": []}
    items = []
    for message in bridge.messages(watch):
        items.append(message.get("item"))
        if len(items) == 3:
            bridge.send("cancel", target=watch)
        if "item" not in message:
            assert message["result"] == {"cancelled": True}
    assert set(items[0] or {}) == {"t", "node", "gpus"}
    assert set((items[0] or {})["node"]) == set(protocol.NODE_FIELDS)


def test_a_watcher_gets_the_busiest_processes_after_two_readings(bridge: Bridge) -> None:
    items = (message["item"] for message in bridge.messages(bridge.send("watch", interval=0.2)))
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert "processes" not in next(items), "a first reading says nothing of now"
        for item in items:
            processes = item.get("processes", [])
            commands = {each["pid"]: each["command"] for each in processes if each["cpu"] > 0}
            # Beside others that are as busy it need not be among them.
            if len(processes) == MAX_BUSY or busy.pid in commands:
                break
    finally:
        busy.kill()
        busy.wait()
    assert all(tuple(each) == protocol.BUSY_FIELDS for each in processes)
    assert len(commands) == len(processes)
    assert commands.get(busy.pid, "-c while True: pass").endswith("-c while True: pass")


def test_cancelling_what_is_not_there_is_no_error(bridge: Bridge) -> None:
    assert bridge.done("cancel", target=12345) == {}
    assert bridge.done("cancel") == {}


def test_streams_of_one_connection_are_bounded(bridge: Bridge) -> None:
    numbers = [bridge.send("watch", interval=60) for _ in range(limits.MAX_REQUESTS + 3)]
    codes: list[tuple[int, str]] = []
    while len(codes) < 3:
        message = bridge.read()
        assert message is not None
        if "error" in message:
            codes.append((message["id"], message["error"]["code"]))
    assert codes == [(number, "too_many") for number in numbers[-3:]]
    assert bridge.done("ping")


def test_an_id_in_use_is_refused(bridge: Bridge) -> None:
    bridge.write(b'{"id": 5, "op": "watch", "interval": 60}\n{"id": 5, "op": "runs"}\n')
    messages = [bridge.read(), bridge.read()]
    codes = [message["error"]["code"] for message in messages if message and "error" in message]
    assert codes == ["bad_request"]


def test_streams_end_with_their_connection(node: AgentNode) -> None:
    with node.bridge() as keeper:
        agent = node.agent()
        before = agent.num_threads()
        other = node.bridge()
        launch(keeper, spec_of("long-run", ["import time; time.sleep(600)"]))
        for _ in range(5):
            other.send("watch", interval=60)
            other.send("follow", run="long-run")
        wait_until("threads", lambda: agent.num_threads() >= before + 10)
        other.close()
        wait_until("no threads", lambda: agent.num_threads() <= before + 4)
