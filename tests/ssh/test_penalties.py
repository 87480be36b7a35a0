"""Servers that drop connections for a penalty or for MaxStartups, and that nothing of ours earns a penalty."""

import re
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from distconsole.config.schema import Config
from distconsole.errors import AuthError, ConnectError, NodeError, UnknownHostKeyError
from distconsole.model.cluster import Cluster, Host
from distconsole.model.names import HostName
from distconsole.model.outcome import Ok
from distconsole.rpc.fanout import fan_out
from distconsole.session import Session
from distconsole.ssh import penalties
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.penalties import NOT_ALLOWED, TOO_MANY
from distconsole_agent import probes
from distconsole_agent.probes.network import between
from fakes.sshd import SSHD_VERSION, SshServer, behind, make_key, port_that, wait_until

NODE = Host(HostName("node"))
MakeServer = Callable[..., SshServer]
BySsh = Callable[[str], dict[str, object]]
both_ways = pytest.mark.parametrize("way", ["paramiko", "openssh"])
real = pytest.mark.skipif(
    SSHD_VERSION < (9, 8),
    reason=f"sshd is {'.'.join(map(str, SSHD_VERSION))}; PerSourcePenalties are of 9.8 and newer",
)
PENALTY = re.compile(r"(?:new|activating) .* penalty of \d+ seconds")
"""What sshd notes with VERBOSE of a penalty that begins; of one that grows, once it is in force."""


def server_that_says(words: str) -> AbstractContextManager[int]:
    """A port that answers as sshd does where it drops a connection."""

    def drop(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(f"{words}\r\n".encode())
        connection.close()

    return port_that(drop)


def failure(kind: type[NodeError], config: str | Path, way: str) -> NodeError:
    transport = ChosenTransport(str(config))
    with pytest.raises(kind) as caught:
        transport.connect(replace(NODE, transport=way)).close()
    transport.close()
    return caught.value


def behind_for_64(hop: SshServer, last: SshServer, way: str) -> tuple[ChosenTransport, list[Host]]:
    config = Path(behind(hop, last))
    config.write_text(config.read_text().replace("Host node", "Host node*"))
    hosts = [Host(HostName(f"node{number}"), transport=way) for number in range(64)]
    return ChosenTransport(str(config)), hosts


def log_of(server: SshServer) -> str:
    return (server.folder / "log").read_text()


@both_ways
@pytest.mark.parametrize("jumps", [False, True], ids=["straight", "by a jump host"])
def test_a_server_that_drops_us_is_named(make_server: MakeServer, way: str, jumps: bool) -> None:
    server = make_server()
    with server_that_says(NOT_ALLOWED) as port:
        line = f"    Port {port}"
        config = behind(make_server(), server, line) if jumps else server.write_config(line)
        error = failure(ConnectError, config, way)
    seen_from = "hop" if jumps else "here"
    assert f"port {port} drops connections from {seen_from} at this time" in error.message
    assert "PerSourcePenalties" in error.message
    assert "MaxStartups" in error.message
    assert "our last login" not in error.message
    assert error.hint.startswith("worth another try in 15 s")


@both_ways
def test_a_server_with_too_many_logins_is_named_as_that(server: SshServer, way: str) -> None:
    with server_that_says(TOO_MANY) as port:
        error = failure(ConnectError, server.write_config(f"    Port {port}"), way)
    assert f"takes no more logins at this time; its sshd says '{TOO_MANY}'" in error.message
    assert error.hint.startswith("worth another try in 1 s")


def test_what_the_server_said_is_known_where_our_version_could_not_be_sent_any_more(
    server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distconsole.ssh.sockets import WatchedStream

    connect = WatchedStream.__init__

    def begin(stream: WatchedStream, *words: object) -> None:
        connect(stream, *words)
        # As if the server's end of the connection had come before the first write.
        wait_until(lambda: bool(stream._stream.recv(1, socket.MSG_PEEK)))
        stream._stream.shutdown(socket.SHUT_WR)

    monkeypatch.setattr(WatchedStream, "__init__", begin)
    with server_that_says(NOT_ALLOWED) as port:
        error = failure(NodeError, server.write_config(f"    Port {port}"), "paramiko")
    assert "drops connections from here" in error.message


@real
@both_ways
@pytest.mark.parametrize("jumps", [False, True], ids=["straight", "by a jump host"])
def test_a_login_that_failed_is_named(make_server: MakeServer, way: str, jumps: bool) -> None:
    server = make_server("LogLevel VERBOSE\nPerSourcePenalties authfail:60 min:10")
    config = behind(make_server(), server) if jumps else server.write_config()
    (server.folder / "authorized").write_text("")
    first = failure(NodeError, config, way)
    assert isinstance(first, AuthError)
    wait_until(lambda: "active penalty of 60" in log_of(server))
    error = failure(ConnectError, config, way)
    assert "PerSourcePenalties" in error.message
    assert re.search(r"our last login there failed \d s ago: ", error.message)
    assert first.message in error.message
    assert error.hint.startswith("worth another try in 15 s, with that login corrected")
    assert "drop connection" in log_of(server)


@both_ways
def test_max_startups_of_a_real_server_is_named(make_server: MakeServer, way: str) -> None:
    server = make_server("MaxStartups 1:100:1")
    with socket.create_connection(("127.0.0.1", server.port)) as held:
        assert held.recv(4) == b"SSH-"
        error = failure(NodeError, server.ssh_config, way)
    new = "too many log in at once (MaxStartups)"
    assert (new if SSHD_VERSION >= (9, 8) else "takes no more logins") in error.message


@real
@both_ways
def test_an_agent_with_many_keys_costs_one_penalty(make_server: MakeServer, way: str) -> None:
    server = make_server("LogLevel VERBOSE")
    keys = [server.folder / f"other{number}" for number in range(8)]
    for key in keys:
        make_key(key)
    failure(
        AuthError, server.write_config("".join(f"    IdentityFile {key}\n" for key in keys)), way
    )
    wait_until(lambda: PENALTY.search(log_of(server)) is not None)
    assert log_of(server).count("Failed publickey") > 5
    assert PENALTY.findall(log_of(server)) == ["new 127.0.0.1/32 deferred penalty of 5 seconds"]


@real
@both_ways
def test_an_unknown_key_costs_a_second_once(make_server: MakeServer, way: str) -> None:
    server = make_server("LogLevel VERBOSE")
    line = server.known_hosts.read_text()
    server.known_hosts.write_text("")
    failure(UnknownHostKeyError, server.ssh_config, way)
    server.known_hosts.write_text(line)
    transport = ChosenTransport(str(server.ssh_config))
    transport.connect(replace(NODE, transport=way)).close()
    transport.close()
    wait_until(lambda: server.sessions() == 0 and bool(PENALTY.search(log_of(server))))
    assert PENALTY.findall(log_of(server)) == ["new 127.0.0.1/32 deferred penalty of 1 seconds"]


@real
@both_ways
def test_logins_that_fail_again_and_again_bring_no_penalty(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    for name, seconds in (("FAILED", 2.0), ("UNTRIED", 0.4), ("LEAST", 6.0), ("MARGIN", 1.2)):
        monkeypatch.setattr(penalties, f"{name}_SECONDS", seconds)
    lines = "LogLevel VERBOSE\nPerSourcePenalties authfail:2s noauth:0 min:6s"
    server = make_server(lines)
    (server.folder / "authorized").write_text("")
    for _ in range(6):
        failure(AuthError, server.ssh_config, way)
    wait_until(lambda: log_of(server).count("authenticating user") == 6)
    assert "deferred penalty of 2 seconds" in log_of(server)
    assert "activating" not in log_of(server)
    assert "drop connection" not in log_of(server)


@real
@both_ways
def test_64_hosts_behind_one_jump_host_bring_no_penalty(make_server: MakeServer, way: str) -> None:
    hop, last = make_server("LogLevel VERBOSE"), make_server("LogLevel VERBOSE")
    transport, hosts = behind_for_64(hop, last, way)
    outcomes = fan_out(hosts, transport.connect)
    assert [each.error for each in outcomes if not isinstance(each, Ok)] == []
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda each: each.value.close(), outcomes))
    transport.close()
    wait_until(lambda: hop.sessions() == last.sessions() == 0, 30)
    assert log_of(hop).count("Accepted publickey for") == 1
    assert log_of(last).count("Accepted publickey for") == 64
    assert PENALTY.findall(log_of(hop) + log_of(last)) == []


@real
@both_ways
def test_64_hosts_behind_one_refusal_add_no_penalty(make_server: MakeServer, way: str) -> None:
    hop, last = make_server("LogLevel VERBOSE"), make_server()
    (hop.folder / "authorized").write_text("")
    transport, hosts = behind_for_64(hop, last, way)
    errors = [each.error for each in fan_out(hosts, transport.connect) if not isinstance(each, Ok)]
    transport.close()
    assert len(errors) == 64
    assert {type(error) for error in errors} == {AuthError}
    wait_until(lambda: PENALTY.search(log_of(hop)) is not None and hop.sessions() == 0)
    assert "activating" not in log_of(hop)
    assert "drop connection" not in log_of(hop)


@real
def test_a_cut_connection_that_is_made_again_brings_no_penalty(make_server: MakeServer) -> None:
    server = make_server("LogLevel VERBOSE")
    host = Host(HostName("node"), node_dir=str(server.node_dir))
    with Session(Config(), Cluster((host,), str(server.ssh_config))) as session:
        link = session.link("node")
        for number in range(2, 7):
            server.cut_sessions()
            wait_until(lambda: not link.connected)
            link.connect()
            assert log_of(server).count("Accepted publickey for") == number
    wait_until(lambda: server.sessions() == 0)
    assert PENALTY.findall(log_of(server)) == []


@pytest.fixture
def by_ssh(make_server: MakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BySsh:
    """Return a function by which an agent tries the login to a host of an ssh_config."""
    monkeypatch.setattr(between, "_FAILED", {})

    def look(config: str) -> dict[str, object]:
        program = tmp_path / "bin" / "ssh"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {config} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
        targets = [{"name": "b", "as": ["node"]}]
        (login,) = probes.run("between", {"targets": targets}, 20.0)["logins"]
        return dict(login)

    return look


@pytest.mark.parametrize("words", [NOT_ALLOWED, TOO_MANY])
def test_a_node_s_dropped_ssh_says_so(server: SshServer, by_ssh: BySsh, words: str) -> None:
    with server_that_says(words) as port:
        login = by_ssh(server.write_config(f"    Port {port}"))
    assert (login["error"], login["said"]) == ("dropped", f"its sshd says '{words}'")


def test_a_node_s_login_that_failed_is_made_again_after_a_wait(
    server: SshServer, by_ssh: BySsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=waits.append)
    monkeypatch.setattr(between, "time", clock)
    (server.folder / "authorized").write_text("")
    assert by_ssh(str(server.ssh_config))["error"] == "auth"
    assert waits == []
    (server.folder / "authorized").write_text(server.public + "\n")
    assert by_ssh(str(server.ssh_config))["ok"] is True
    assert len(waits) == 1
    assert 0 < waits[0] <= between.AGAIN_SECONDS


@real
def test_a_node_s_ssh_meets_a_penalty_and_names_it(
    make_server: MakeServer, by_ssh: BySsh, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make_server("LogLevel VERBOSE\nPerSourcePenalties authfail:60 min:10")
    (server.folder / "authorized").write_text("")
    assert by_ssh(str(server.ssh_config))["error"] == "auth"
    wait_until(lambda: "active penalty of 60" in log_of(server))
    monkeypatch.setattr(between, "AGAIN_SECONDS", 0.0)
    login = by_ssh(str(server.ssh_config))
    assert (login["error"], login["said"]) == ("dropped", f"its sshd says '{NOT_ALLOWED}'")
