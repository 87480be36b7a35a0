"""The SSH servers of the embedded nodes, asked by paramiko itself."""

import getpass
import socket
import struct
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import paramiko
import pytest

from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.ssh import embedded
from distconsole.ssh.embedded import EmbeddedCluster
from distconsole.ssh.transport import LocalTransport
from fakes.sshd import wait_until


def connected(cluster: EmbeddedCluster) -> paramiko.Transport:
    port = int(cluster.ssh_config.read_text().split("Port ")[1].split()[0])
    transport = paramiko.Transport(("127.0.0.1", port))
    key = paramiko.Ed25519Key.from_private_key_file(str(cluster.folder / "id_ed25519"))
    transport.connect(username=getpass.getuser(), pkey=key)
    return transport


def test_a_user_without_a_home_is_in_root_also_if_the_command_has_ended_before_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    begin = embedded._Login.check_channel_exec_request

    def begin_late(*request: Any) -> bool:
        begun = begin(*request)
        time.sleep(0.5)
        return begun

    monkeypatch.setattr(embedded._Login, "check_channel_exec_request", begin_late)
    with (
        EmbeddedCluster(1, folder=tmp_path / "e") as cluster,
        closing(connected(cluster)) as login,
    ):
        channel = login.open_session()
        channel.exec_command("pwd")
        assert channel.makefile("r").read() == b"/\n"
    with closing(LocalTransport().connect(Host(HostName("here")))) as connection:
        pwd = connection.open("pwd", 5.0)
        assert pwd.recv(100, 5.0) == b"/\n"


def test_a_connection_that_breaks_while_a_command_writes_fails_no_thread_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    monkeypatch.setattr(
        threading, "excepthook", lambda failure: failed.append(repr(failure.exc_value))
    )

    def copying() -> list[str]:
        return [thread.name for thread in threading.enumerate() if "embedded:st" in thread.name]

    with EmbeddedCluster(1, folder=tmp_path / "e") as cluster:
        for _ in range(8):
            transport = connected(cluster)
            # Closed without a goodbye, so that the server's next write fails.
            linger = struct.pack("ii", 1, 0)
            transport.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            channel = transport.open_session()
            channel.exec_command("yes; yes >&2")
            channel.recv(100_000)
            transport.sock.close()
            transport.close()
        wait_until(lambda: not copying())
    assert failed == []
