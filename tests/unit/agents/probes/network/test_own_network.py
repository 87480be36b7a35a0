"""Listeners as the kernel tells them, against sockets of our own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from distconsole_agent.probes.network import own_network as probe


@pytest.mark.parametrize(
    ("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
)
def test_a_listener_is_found_with_its_user_and_its_inode(family: int, address: str) -> None:
    with socket.create_server((address, 0), family=family) as ours:
        port = ours.getsockname()[1]
        with socket.create_connection((address, port)) as connection:
            found = list(probe.listeners())
            assert connection.getsockname()[1] not in {each.port for each in found}
        (mine,) = [each for each in found if each.port == port]
        assert mine.uid == os.getuid()
        assert mine.open_file == str(Path(f"/proc/self/fd/{ours.fileno()}").readlink())
