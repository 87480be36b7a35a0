"""What an operator wishes of a run that is watched; the nodes are faked."""

from __future__ import annotations

import threading
from typing import Any, cast

from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.operations.control import Control
from distconsole.operations.watching import WishCarrier
from distconsole.session import Session

HOSTS = (HostName("a"), HostName("b"))


class Nodes:
    """A session whose host ``b`` answers nobody until it is let go."""

    def __init__(self) -> None:
        self.cluster = Cluster(tuple(Host(name) for name in HOSTS))
        self.let_go = threading.Event()
        self.told: list[tuple[str, str, float | None]] = []
        self.killed = threading.Event()

    def link(self, name: str) -> Node:
        return Node(self, name)


class Node:
    def __init__(self, nodes: Nodes, name: str) -> None:
        self._nodes = nodes
        self._name = name

    def connect(self) -> None:
        if self._name == "b":
            assert self._nodes.let_go.wait(20)

    def request(self, _op: str, _timeout: float, **arguments: Any) -> dict[str, Any]:
        grace = arguments.get("grace")
        self._nodes.told.append((self._name, arguments["reason"], grace))
        if grace == 0:
            self._nodes.killed.set()
        return {}


def test_a_kill_does_not_wait_for_a_host_that_was_not_told_of_the_stop_yet() -> None:
    nodes, control = Nodes(), Control()
    carrier = WishCarrier(control, cast("Session", nodes), HOSTS, "run-1")
    control.stop()
    control.kill()
    try:
        assert nodes.killed.wait(20)
        assert {name for name, *_ in nodes.told} == {"a"}
    finally:
        nodes.let_go.set()
        carrier.close()
    assert sorted(nodes.told, key=str) == sorted(
        [(name, "sigint", grace) for name in HOSTS for grace in (None, 0.0)], key=str
    )
