"""Whose a TCP connection is, by the real kernel."""

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from distconsole_agent.coordination import whose


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    whose._has_inet_diag.cache_clear()
    yield
    whose._has_inet_diag.cache_clear()


@pytest.mark.parametrize("protocol", [socket.IPPROTO_TCP, 253], ids=["inet_diag", "none"])
def test_a_connection_is_this_users_also_where_the_kernel_has_no_inet_diag(
    protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a protocol that it has no such module for the kernel says what it says of a missing socket.
    monkeypatch.setattr(whose, "_PROTOCOL", protocol)
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as maker:
            near, far = maker.getsockname(), maker.getpeername()
            assert whose.uid_of(near, far) == os.getuid()
        assert whose.uid_of(("127.0.0.1", 1), far) is None


class Node(NamedTuple):
    """What is asked of a run's node."""

    spec: SimpleNamespace
    said: list[dict[str, object]]
    lost: bool = False

    def post(self, message: dict[str, object]) -> None:
        self.said.append(message)


def test_a_node_that_is_lost_answers_no_and_leaves_no_question() -> None:
    nodes = [Node(SimpleNamespace(address=f"192.0.2.{index}"), []) for index in range(2)]
    asking, heard = whose.Whose(nodes), []  # type: ignore[arg-type,var-annotated]
    ends = whose.Ends(("192.0.2.1", 40000), ("192.0.2.0", 50000))
    for _ in range(whose.MAX_ASKED):
        asking.ask(ends, heard.append)
    assert (len(nodes[1].said), heard) == (whose.MAX_ASKED, [])
    asking.lost(1)
    assert heard == [False] * whose.MAX_ASKED
    asking.ask(ends, heard.append)
    asking.heard(1, {"id": nodes[1].said[-1]["id"], "ours": True})
    assert heard[whose.MAX_ASKED :] == [True], "there is room for questions again"
