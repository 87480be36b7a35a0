"""The kernel's tables of TCP sockets, of this process's own."""

import os
import socket
from pathlib import Path

import pytest

from distconsole_agent.system.tcp_sockets import ESTABLISHED, LISTEN, tcp_sockets


@pytest.mark.parametrize(
    ("address", "asked"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")],
    ids=["IPv4", "IPv6", "IPv4 at a listener of IPv6"],
)
def test_a_socket_is_found_with_its_ends_its_user_and_its_inode(address: str, asked: str) -> None:
    family, anywhere = socket.AF_INET, "0.0.0.0"
    if ":" in address:
        family, anywhere = socket.AF_INET6, "::"
    with socket.create_server((address, 0), family=family, dualstack_ipv6=address == "::") as ours:
        port = ours.getsockname()[1]
        with socket.create_connection((asked, port)) as maker, ours.accept()[0] as taker:
            own = asked, maker.getsockname()[1]
            found = {each.open_file: each for each in tcp_sockets()}
            for held, *expected in (
                (ours, (address, port), (anywhere, 0), LISTEN),
                (taker, (asked, port), own, ESTABLISHED),
                (maker, own, (asked, port), ESTABLISHED),
            ):
                one = found[str(Path(f"/proc/self/fd/{held.fileno()}").readlink())]
                assert [*one[:4]] == [*expected, os.getuid()]
