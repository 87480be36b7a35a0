"""Reaching a host: what works with real OpenSSH, and what each way of failing is called."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distconsole.errors import (
    AuthError,
    ChangedHostKeyError,
    ConnectError,
    LinkLostError,
    NodeError,
    ResolveError,
    UnknownHostKeyError,
)
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.ssh import paramiko_transport
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.known_hosts import add_line
from distconsole.ssh.transport import Connection
from fakes.sshd import behind, connected, port_that, stdout_of
from suite.programs import free_port, run_to_end

NODE = Host(HostName("node"))
both_ways = pytest.mark.parametrize("way", ["paramiko", "openssh"])


def reached(config: str, host: Host = NODE, way: str = "paramiko") -> AbstractContextManager[Any]:
    return connected(ChosenTransport(config), replace(host, transport=way))


def succeeds(connection: Connection) -> bool:
    channel = connection.open("true", 10)
    return stdout_of(channel) == b"" and channel.exit_code(10) == 0


def failure(kind: type[NodeError], config: str, host: Host = NODE, way: str = "paramiko") -> Any:
    with pytest.raises(kind) as caught, reached(config, host, way):
        pass
    return caught.value


def obey(error: NodeError, word: str, config: str) -> str:
    """Run the line of a hint that begins with ``word``, reach the host, and return the line."""
    line = error.hint[error.hint.index(word) :]
    subprocess.run(line, shell=True, check=True, capture_output=True, timeout=20)
    with reached(config) as connection:
        assert succeeds(connection)
    return line


@both_ways
def test_a_command_runs_and_its_streams_and_code_come_back(server, way: str) -> None:
    with reached(str(server.ssh_config), way=way) as connection:
        assert connection.reached_at == "127.0.0.1"
        channel = connection.open("echo out; echo err >&2; exit 7", 10)
        assert stdout_of(channel) == b"out\n"
        assert channel.exit_code(10) == 7
        assert channel.stderr_tail() == "err"


def test_the_socket_sends_at_once(server) -> None:
    with reached(str(server.ssh_config)) as connection:
        stream = connection._stream._stream
        assert isinstance(stream, socket.socket)
        assert stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@both_ways
def test_of_much_on_stderr_the_end_is_kept(server, way: str) -> None:
    with reached(str(server.ssh_config), way=way) as connection:
        channel = connection.open("head -c 5000000 /dev/zero; yes | head -c 300000 >&2", 20)
        assert len(stdout_of(channel)) == 5_000_000
        assert channel.exit_code(10) == 0
        assert 0 < len(channel.stderr_tail()) < 10_000


@both_ways
def test_a_refused_port_is_a_connect_error(server, way: str) -> None:
    error = failure(ConnectError, server.write_config(f"    Port {free_port()}"), way=way)
    assert "refused" in error.message


def half(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-Half\r\n")
    connection.recv(4096)
    connection.close()


HTTP = b"\x1b[31mHTTP/1.1 400\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda _connection: None, "says nothing"),
        (lambda connection: connection.sendall(HTTP), "not an SSH server; it says 'HTTP/1.1 400'"),
        (lambda connection: connection.close(), "hangs up"),
        (half, "key exchange"),
    ],
    ids=["silent", "not SSH, quoted without its escapes", "hangs up", "dies in the key exchange"],
)
def test_a_port_without_ssh_is_a_connect_error(server, monkeypatch, answer, words: str) -> None:
    monkeypatch.setattr(paramiko_transport, "BANNER_SECONDS", 0.5)
    with port_that(answer) as port:
        error = failure(ConnectError, server.write_config(f"    Port {port}"))
    assert words in error.message


def test_a_name_without_an_address_is_a_resolve_error(server) -> None:
    error = failure(ResolveError, server.write_config("    HostName no-such-host.invalid"))
    assert "node in ssh_config" in error.message


def test_a_misspelt_host_is_told_the_nearest_of_ssh_config(server) -> None:
    config = server.write_config(name="node1.invalid")
    for typed in ("node1.invlid", "NODE1.invalid"):
        error = failure(ResolveError, config, Host(HostName(typed)))
        assert error.message.startswith(f"{typed.lower()} has no address")
        assert error.hint == "did you mean node1.invalid, which ssh_config has?"


def test_an_unknown_key_tells_the_line_that_adds_it(server) -> None:
    server.known_hosts.write_text("")
    error = failure(UnknownHostKeyError, str(server.ssh_config))
    shown = run_to_end(["ssh-keygen", "-l", "-f", server.folder / "host.pub"]).stdout.split()[1]
    assert shown in error.message
    line = obey(error, "mkdir", str(server.ssh_config))
    assert (server.folder / "host.pub").read_text().split()[1] in line


def test_a_changed_key_tells_the_line_that_mends_it(server, tmp_path: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True
    )
    other = (tmp_path / "k.pub").read_text()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {other}")
    error = failure(ChangedHostKeyError, str(server.ssh_config))
    assert f"{server.known_hosts}:1" in error.message
    line = obey(error, "ssh-keygen", str(server.ssh_config))
    assert line.startswith(f"ssh-keygen -R '[127.0.0.1]:{server.port}' -f {server.known_hosts}")


@pytest.mark.parametrize("strict", ["no", "accept-new", "off"])
@both_ways
def test_strict_checking_is_never_weakened(server, strict: str, way: str) -> None:
    server.known_hosts.write_text("")
    failure(
        UnknownHostKeyError, server.write_config(f"    StrictHostKeyChecking {strict}"), way=way
    )


def test_an_unknown_alias_is_added_by_the_very_key(server) -> None:
    server.known_hosts.write_text("")
    config = server.write_config("    HostKeyAlias its-name")
    obey(failure(UnknownHostKeyError, config), "echo", config)


@both_ways
def test_a_wrong_key_is_an_auth_error_that_names_it(server, way: str) -> None:
    (server.folder / "authorized").write_text("")
    error = failure(AuthError, str(server.ssh_config), way=way)
    assert str(server.user_key) in error.message
    assert "the server offers: publickey" in error.message
    assert error.offers == ("publickey",)
    assert error.hint.startswith("ssh-copy-id")


def test_no_key_at_all_is_an_auth_error(server) -> None:
    server.user_key.unlink()
    error = failure(AuthError, str(server.ssh_config))
    assert "cannot be read" in error.message


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "agent"
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    # It prints its address once it listens.
    process.stdout.readline()
    yield path
    process.terminate()
    process.communicate()


@both_ways
def test_a_host_need_not_allow_forwarding(make_server, way: str) -> None:
    config = str(make_server("DisableForwarding yes\nAllowTcpForwarding no").ssh_config)
    with reached(config, way=way) as connection:
        assert succeeds(connection)


@both_ways
def test_no_agent_is_forwarded(server, agent: Path, way: str) -> None:
    config = server.write_config(f"    IdentityAgent {agent}\n    ForwardAgent yes")
    tell = 'echo "[$SSH_AUTH_SOCK]"'
    by_hand = subprocess.run(
        ["ssh", "-F", config, "node", tell], stdout=subprocess.PIPE, check=True
    )
    assert by_hand.stdout != b"[]\n"
    with reached(config, way=way) as connection:
        assert stdout_of(connection.open(tell, 10)) == b"[]\n"


@both_ways
def test_many_hosts_share_one_connection_to_their_jump_host(make_server, way: str) -> None:
    first, last = make_server(), make_server()
    transport = ChosenTransport(behind(first, last))
    connections = [transport.connect(replace(NODE, transport=way)) for _ in range(3)]
    assert all(succeeds(connection) for connection in connections)
    log = (first.folder / "log").read_text()
    for connection in connections:
        connection.close()
    transport.close()
    assert log.count("Accepted publickey") == 1


@both_ways
@pytest.mark.parametrize(
    ("dead", "words"), [(0, ["by way of hop"]), (1, ["the jump host", "127.0.0.1"])]
)
def test_a_dead_jump_host_and_a_host_that_it_cannot_reach_are_told_apart(
    make_server, way: str, dead: int, words: list[str]
) -> None:
    servers = make_server(), make_server()
    config = behind(*servers)
    servers[dead].stop()
    error = failure(ConnectError, config, way=way)
    assert all(each in error.message for each in words)


def test_an_unknown_key_behind_a_jump_is_added_without_keyscan(make_server) -> None:
    first, last = make_server(), make_server()
    config = behind(first, last)
    last.known_hosts.write_text("")
    error = failure(UnknownHostKeyError, config)
    obey(error, "echo", config)


def test_an_unknown_key_of_a_jump_host_is_one_to_trust(make_server) -> None:
    first, last = make_server(), make_server()
    config = behind(first, last)
    first.known_hosts.write_text("")
    error = failure(UnknownHostKeyError, config)
    assert error.message.startswith("by way of hop: ")
    add_line(error.file, error.line)
    with reached(config) as connection:
        assert succeeds(connection)


@both_ways
def test_a_jump_host_that_jumps_through_itself_ends(make_server, way: str) -> None:
    server = make_server()
    failure(ConnectError, server.write_config("    ProxyJump node"), way=way)


@both_ways
def test_a_proxy_command_is_spoken_through(server, way: str) -> None:
    command = f"ssh -F {server.folder}/plain -W %h:%p node"
    (server.folder / "plain").write_text(server.ssh_config.read_text())
    with reached(server.write_config(f"    ProxyCommand {command}"), way=way) as connection:
        assert connection.reached_at == ""
        assert stdout_of(connection.open("echo through", 10)) == b"through\n"


@both_ways
def test_death_mid_stream_is_a_lost_link(server, way: str) -> None:
    with reached(str(server.ssh_config), way=way) as connection:
        channel = connection.open("echo here; sleep 60", 10)
        assert channel.recv(100, 10) == b"here\n"
        server.cut_sessions()
        with pytest.raises(LinkLostError):
            channel.recv(100, 10)
        assert not connection.alive


def test_death_while_something_is_sent_is_a_lost_link(server) -> None:
    with reached(str(server.ssh_config)) as connection:
        channel = connection.open("cat >/dev/null; sleep 60", 10)
        # What a thread sees that is about to write when paramiko's own finds the connection ended.
        channel._channel.get_transport().packetizer.close()
        with pytest.raises(LinkLostError, match="takes nothing"):
            channel.send(b"lost", 10)
