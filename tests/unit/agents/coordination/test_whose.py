"""Whose a TCP connection is, by the real kernel."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

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
