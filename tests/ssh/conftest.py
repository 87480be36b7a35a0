"""Real OpenSSH servers for the tests of this folder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.sshd import SSHD, SshServer


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep failed logins of a test from others, and out of the developer's home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[Callable[..., SshServer]]:
    """Return a function that starts servers with further lines of sshd_config."""
    if SSHD is None:
        pytest.skip("no sshd here (openssh-server)")
    servers: list[SshServer] = []

    def make(lines: str = "", **more: Any) -> SshServer:
        server = SshServer(tmp_path / f"s{len(servers)}", lines=lines, **more)
        servers.append(server)
        return server.start()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(make_server: Callable[..., SshServer]) -> SshServer:
    """One server with nothing special."""
    return make_server()
