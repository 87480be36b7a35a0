"""A node with a real agent, for the tests that talk to one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.agents import AgentNode, Bridge


@pytest.fixture
def node(tmp_path: Path) -> Iterator[AgentNode]:
    node = AgentNode(tmp_path / "node")
    yield node
    node.close()


@pytest.fixture
def bridge(node: AgentNode) -> Bridge:
    return node.bridge()
