"""Connections by the system's ssh: each way to log in that it knows, with a real sshd that asks for it."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest

from distconsole.errors import AgentError, AuthError, ConnectError, LinkLostError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.ssh.asking import LoginQuestion, Person
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.multiplexing import ControlSocket
from distconsole.ssh.openssh import OpensshConnection
from fakes.pam import PASSWORD, PamService, code_now, lacks_pam
from fakes.sshd import SshServer, connected, stdout_of, wait_until
from suite.programs import free_port
from suite.terminal import Terminal, Terminals

NODE = Host(HostName("node"))
BY_SSH = replace(NODE, transport="openssh")
needs_pam = pytest.mark.skipif(bool(lacks_pam()), reason=lacks_pam() or "PAM is there")
NO_KEY = "PubkeyAuthentication no"


class Answers:
    """A person who knows what to say; ``put`` are the questions that were put."""

    def __init__(
        self, answers: dict[str, Callable[[], str | None]], *, there: bool = True
    ) -> None:
        self.answers, self.there = answers, there
        self.put: list[str] = []

    def can_ask(self) -> bool:
        return self.there

    def ask(self, question: LoginQuestion, wanted: Callable[[], bool]) -> str | None:
        self.put.append(question.text)
        return next((say() for words, say in self.answers.items() if words in question.text), None)


def reached(config: str | Path, answers: Answers, host: Host = NODE) -> Any:
    return connected(ChosenTransport(str(config), Person(answers)), host)


def logins(server: SshServer) -> int:
    return (server.folder / "log").read_text().count("Accepted ")


@pytest.fixture
def ask_for(make_server, tmp_path: Path) -> Iterator[Callable[..., SshServer]]:
    """Return a function that starts servers that ask for a ``password`` or a ``code`` by PAM, all as the first."""
    services: list[PamService] = []

    def make(lines: str, **asked: bool) -> SshServer:
        if not services:
            services.append(PamService(tmp_path / "pam", **asked))
        made: SshServer = make_server(services[0].lines + lines, program=services[0].program)
        return made

    yield make
    for service in services:
        service.close()


@needs_pam
def test_a_password_is_asked_for_where_the_key_is_refused(ask_for) -> None:
    server = ask_for("PasswordAuthentication yes", password=True)
    (server.folder / "authorized").write_text("")
    tries = iter(["wrong", PASSWORD])
    answers = Answers({"root@127.0.0.1's password:": lambda: next(tries)})
    with reached(server.ssh_config, answers) as connection:
        assert isinstance(connection, OpensshConnection)
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
    assert len(answers.put) == 2
    assert logins(server) == 1


@needs_pam
def test_a_key_and_then_a_code_is_asked_for(ask_for) -> None:
    both = "KbdInteractiveAuthentication yes\nAuthenticationMethods publickey,keyboard-interactive"
    server = ask_for(both, code=True)
    answers = Answers({"Verification code:": code_now})
    with reached(server.ssh_config, answers) as connection:
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
        assert stdout_of(connection.open("echo again", 10)) == b"again\n"
    assert [words.split(") ")[-1] for words in answers.put] == ["Verification code:"]


@needs_pam
def test_a_password_and_a_code_at_the_jump_host_are_asked_for_once(ask_for, make_server) -> None:
    hop = ask_for(f"{NO_KEY}\nKbdInteractiveAuthentication yes", password=True, code=True)
    hop.write_config(name="hop")
    node = make_server()
    text = Path(node.write_config("    ProxyJump hop")).read_text() + hop.ssh_config.read_text()
    node.ssh_config.write_text(text)
    answers = Answers({"Password:": lambda: PASSWORD, "Verification code:": code_now})
    transport = ChosenTransport(str(node.ssh_config), Person(answers))
    connections = [transport.connect(NODE) for _ in range(3)]
    assert {stdout_of(each.open("echo in", 10)) for each in connections} == {b"in\n"}
    for each in connections:
        each.close()
    transport.close()
    assert len(answers.put) == 2
    assert (logins(hop), logins(node)) == (1, 3)


@needs_pam
def test_nobody_to_ask_is_told_what_the_server_offers(ask_for) -> None:
    server = ask_for("PasswordAuthentication yes", password=True)
    (server.folder / "authorized").write_text("")
    for host in (NODE, BY_SSH):
        with (
            pytest.raises(AuthError) as caught,
            reached(server.ssh_config, Answers({}, there=False), host),
        ):
            pass
        assert "the server offers: publickey, password" in caught.value.message
        assert str(server.user_key) in caught.value.message
        assert "terminal" in caught.value.hint


@needs_pam
def test_who_does_not_answer_is_not_asked_again_at_once(ask_for) -> None:
    server = ask_for("PasswordAuthentication yes", password=True)
    (server.folder / "authorized").write_text("")
    answers = Answers({"password": lambda: None})
    transport = ChosenTransport(str(server.ssh_config), Person(answers))
    for _ in range(2):
        with pytest.raises(AuthError, match="nobody answered") as caught:
            transport.connect(NODE)
        assert "to be let in by key: ssh-copy-id" in caught.value.hint
    transport.close()
    assert len(answers.put) == 1


@needs_pam
def test_a_question_that_waited_too_long_for_others_is_put_all_the_same(ask_for) -> None:
    first = ask_for(f"{NO_KEY}\nPasswordAuthentication yes", password=True)
    other = ask_for(f"LoginGraceTime 2\n{NO_KEY}\nPasswordAuthentication yes")
    first.ssh_config.write_text(
        first.ssh_config.read_text() + Path(other.write_config(name="other")).read_text()
    )
    asked = threading.Event()

    def say_late() -> str:
        if not asked.is_set():
            asked.set()
            wait_until(lambda: other.sessions() == 1, 30)
            wait_until(lambda: other.sessions() == 0, 30)  # it had enough of waiting
        return PASSWORD

    person = Person(Answers({"password": say_late}), patience_seconds=1.0)
    transport = ChosenTransport(str(first.ssh_config), person)
    by_ssh = [BY_SSH, replace(BY_SSH, name=HostName("other"))]
    with ThreadPoolExecutor() as pool:
        one = pool.submit(transport.connect, by_ssh[0])
        wait_until(asked.is_set, 20)
        two = pool.submit(transport.connect, by_ssh[1])
        for connection in (one.result(60), two.result(60)):
            assert stdout_of(connection.open("echo in", 10)) == b"in\n"
            connection.close()
    transport.close()


@needs_pam
def test_a_connection_that_ends_right_after_the_login_is_no_riddle(ask_for) -> None:
    server = ask_for(f"{NO_KEY}\nKbdInteractiveAuthentication yes", password=True)
    # Its PAM lets in, and then has no credentials to give.
    answers = Answers({"Password": lambda: PASSWORD})
    with (
        pytest.raises((ConnectError, LinkLostError)) as caught,
        reached(server.ssh_config, answers, BY_SSH) as connection,
    ):
        connection.open("echo in", 10)
    assert "master" not in str(caught.value)
    assert len(answers.put) == 1


@needs_pam
def test_a_secret_stands_in_no_command_line_no_environment_and_no_file(ask_for) -> None:
    server = ask_for(f"{NO_KEY}\nPasswordAuthentication yes", password=True)
    seen: list[bytes] = []

    def look_and_say() -> str:
        seen.extend(_all_of_ssh())
        return PASSWORD

    with reached(server.ssh_config, Answers({"password": look_and_say}), BY_SSH) as connection:
        seen.extend(_all_of_ssh())
        folder = Path(connection.master.path).parent
        assert folder.stat().st_mode & 0o777 == 0o700
        seen.extend(file.read_bytes() for file in folder.iterdir() if file.is_file())
    assert seen
    assert not any(PASSWORD.encode() in each for each in seen)
    assert not folder.exists()


def _all_of_ssh() -> list[bytes]:
    """Return the words and the environment of every ssh, and of what asks for it."""
    found = []
    for process in psutil.process_iter(["name"]):
        if process.info["name"] in ("ssh", "python", "python3", "sh"):
            place = Path("/proc") / str(process.pid)
            try:
                found += [(place / name).read_bytes() for name in ("cmdline", "environ")]
            except OSError:
                continue
    return found


@pytest.fixture
def short_folder() -> Iterator[str]:
    """For sockets, whose paths may not be long."""
    with TemporaryDirectory(prefix="cm", dir="/tmp") as folder:
        yield folder


@pytest.fixture
def users_master(server, short_folder: str) -> Iterator[Path]:
    """A master that the user opened, as ssh_config says."""
    server.write_config(f"    ControlPath {short_folder}/%r-%C")
    ssh = ["ssh", "-F", str(server.ssh_config)]
    subprocess.run([*ssh, "-M", "-N", "-f", "node"], check=True, timeout=20)
    yield next(Path(short_folder).iterdir())
    subprocess.run([*ssh, "-q", "-O", "exit", "node"], check=False, timeout=20)


def test_a_master_of_the_user_s_is_used_and_left(server, users_master: Path) -> None:
    with reached(server.ssh_config, Answers({}, there=False)) as connection:
        assert connection.master.path == str(users_master)
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
    assert logins(server) == 1
    control = ControlSocket(str(users_master))
    control.check()
    control.close()


def test_a_master_of_a_silent_server_gives_way_to_ours(server, users_master: Path) -> None:
    with reached(server.ssh_config, Answers({}, there=False)) as connection:
        server.freeze_sessions()
        assert stdout_of(connection.open("echo in", 2)) == b"in\n"
        assert connection.master.path != str(users_master)
    assert logins(server) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_master_of_somebody_else_s_is_not_used(server, users_master: Path) -> None:
    os.chown(users_master, 12345, 12345)
    with reached(server.ssh_config, Answers({}, there=False), BY_SSH) as connection:
        assert connection.master.path != str(users_master)
    os.chown(users_master, 0, 0)
    assert logins(server) == 2


def test_a_users_full_master_gives_way_to_one_of_ours(make_server, short_folder: str) -> None:
    server = make_server("MaxSessions 1")
    config = server.write_config(f"    ControlPath {short_folder}/cm")
    ssh = ["ssh", "-F", config, "-M", "node", "echo held; cat"]
    with subprocess.Popen(ssh, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as shell:
        assert shell.stdout.readline() == b"held\n"
        with reached(config, Answers({}, there=False)) as connection:
            assert stdout_of(connection.open("echo in", 10)) == b"in\n"
        assert shell.poll() is None
        shell.communicate(timeout=20)
    assert logins(server) == 2


def test_a_master_to_the_jump_host_is_enough(server, users_master: Path, make_server) -> None:
    (server.folder / "authorized").write_text("")  # it lets nobody in any more
    hop = server.ssh_config.read_text().replace("Host node", "Host hop")
    last = make_server()
    last.write_config("    ProxyJump hop")
    last.ssh_config.write_text(last.ssh_config.read_text() + hop)
    with reached(last.ssh_config, Answers({}, there=False)) as connection:
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
    assert (logins(server), logins(last)) == (1, 1)


@pytest.mark.parametrize("sessions", [1, 2])
def test_as_many_commands_run_at_once_as_the_server_allows(make_server, sessions: int) -> None:
    server = make_server(f"MaxSessions {sessions}")
    with reached(server.ssh_config, Answers({}), BY_SSH) as connection:
        held = [connection.open("echo in; cat", 10) for _ in range(sessions)]
        assert [channel.recv(100, 10) for channel in held] == [b"in\n"] * sessions
        with pytest.raises(AgentError, match="refuses to run"):
            connection.open("true", 10)
        held[0].close()
        assert stdout_of(connection.open("echo next", 10)) == b"next\n"
    assert logins(server) == 1


@needs_pam
@pytest.mark.tmux
def test_check_and_console_ask_in_terminal_and_on_screen(ask_for, tmp_path: Path) -> None:
    server = ask_for(f"{NO_KEY}\nKbdInteractiveAuthentication yes", password=True, code=True)
    own = tmp_path / "config" / "distconsole"
    own.mkdir(parents=True)
    node = f'[hosts.node]\nnode_dir = "{server.node_dir}"\n'
    (own / "distconsole.toml").write_text(node)
    environment = {"DISTCONSOLE_SSH_CONFIG": str(server.ssh_config)}
    environment |= {f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("DATA", "STATE")}
    environment["XDG_CONFIG_HOME"] = str(own.parent)
    program = [sys.executable, "-m", "distconsole", "--hosts", "node"]
    with Terminals(tmp_path) as terminals:
        size = (100, 40)
        lines = terminals.open(
            "lines", [*program, "check", "--level", "quick"], size, **environment
        )
        log_in(lines, r"^node: .* Password:")
        lines.see(r"1 of 1 host reachable", r"ended with 0")
        screen = terminals.open("screen", program, size, **environment)
        log_in(screen, r"log in to node")
        screen.see("● node connected")
        screen.press("q")
        screen.see(r"ended with 0")
        (own / "distconsole.toml").write_text(f'{node}transport = "openssh"\n')
        before = terminals.open("before", program, size, **environment)
        log_in(before, r"^node: .* Password:")
        before.see("● node connected")
        before.press("q")
        before.see(r"ended with 0")
        assert not any(PASSWORD in each.text for each in (lines, screen, before))
    assert logins(server) == 3


@needs_pam
@pytest.mark.tmux
def test_ctrl_c_at_a_question_ends_it_and_restores_the_terminal(ask_for, tmp_path: Path) -> None:
    server = ask_for(f"{NO_KEY}\nPasswordAuthentication yes", password=True)
    environment = {"DISTCONSOLE_SSH_CONFIG": str(server.ssh_config)}
    environment |= {
        f"XDG_{name}_HOME": str(tmp_path / name.lower()) for name in ("DATA", "STATE", "CONFIG")
    }
    words = [sys.executable, "-m", "distconsole", "--hosts", "node", "check"]
    with Terminals(tmp_path) as terminals:
        terminal = terminals.open("it", ["bash", "--norc", "-i"], (100, 40), **environment)
        terminal.press(f"cd {tmp_path}; clear; {shlex.join(words)}", "Enter")
        terminal.see("node: root@127.0.0.1's password:")
        terminal.press("C-c")
        terminal.see(r"(?s)(interrupted|cancelled|error:).*[#$]\s*\Z")
        terminal.press("stty -a", "Enter")
        terminal.see(r"(?<![-\w])echo ")
        assert "password: " not in terminal.text
    assert logins(server) == 0


def log_in(terminal: Terminal, question: str) -> None:
    """Answer the question for the password, and that for the code."""
    terminal.see(f"(?m){question}")
    terminal.press(PASSWORD, "Enter")
    terminal.see("Verification code:")
    terminal.press(code_now(), "Enter")


def test_a_master_that_is_killed_is_a_lost_link(server) -> None:
    with reached(server.ssh_config, Answers({}), BY_SSH) as connection:
        channel = connection.open("cat", 10)
        channel.send(b"here", 10)
        assert channel.recv(100, 10) == b"here"
        for process in psutil.process_iter(["cmdline"]):
            if any(connection.master.path in word for word in process.info["cmdline"] or ()):
                process.kill()
        with pytest.raises(LinkLostError):
            channel.recv(100, 10)
        wait_until(lambda: not connection.alive)
        with pytest.raises(LinkLostError):
            connection.open("true", 10)


def test_no_master_of_ours_stays(server) -> None:
    with reached(server.ssh_config, Answers({}), BY_SSH) as connection:
        path = connection.master.path
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
    wait_until(lambda: not _is_named(path))


def _is_named(path: str) -> bool:
    lines = (process.info["cmdline"] for process in psutil.process_iter(["cmdline"]))
    return any(path in word for line in lines for word in line or ())


@pytest.fixture
def kerberos(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A KDC on loopback with a ticket for root; yields the environment that finds it."""
    kdc = shutil.which("krb5kdc", path=f"{os.environ['PATH']}:/usr/sbin")
    if kdc is None or shutil.which("kinit") is None or os.getuid() != 0:
        pytest.skip("no KDC here (krb5-kdc, krb5-admin-server, krb5-user), or not root")
    port, folder = free_port(), tmp_path / "krb"
    folder.mkdir()
    (folder / "krb5.conf").write_text(
        f"[libdefaults]\ndefault_realm = LAB\ndns_canonicalize_hostname = false\nrdns = false\n"
        f"[realms]\nLAB = {{\n kdc = 127.0.0.1:{port}\n}}\n[domain_realm]\nlocalhost = LAB\n"
    )
    (folder / "kdc.conf").write_text(
        f"[kdcdefaults]\nkdc_listen = 127.0.0.1:{port}\nkdc_tcp_listen = 127.0.0.1:{port}\n"
        f"[realms]\nLAB = {{\n database_name = {folder}/db\n key_stash_file = {folder}/stash\n}}\n"
    )
    environ = {
        "KRB5_CONFIG": str(folder / "krb5.conf"),
        "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
        "KRB5_KTNAME": str(folder / "keytab"),
        "KRB5CCNAME": str(folder / "ticket"),
    }
    everything = {**os.environ, **environ, "PATH": f"{os.environ['PATH']}:/usr/sbin"}

    def do(words: str) -> None:
        subprocess.run(
            shlex.split(words), env=everything, check=True, capture_output=True, timeout=30
        )

    do("kdb5_util create -s -P master -W")
    do("kadmin.local addprinc -randkey host/localhost")
    do("kadmin.local addprinc -randkey root")
    do("kadmin.local ktadd host/localhost root")
    with subprocess.Popen([kdc, "-n"], env=everything, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: _listens(port))
            do(f"kinit -k -t {folder}/keytab root")
            yield environ
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_kerberos_ticket_logs_in(
    kerberos: dict[str, str], make_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "GSSAPIAuthentication yes\nGSSAPIStrictAcceptorCheck no\nPubkeyAuthentication no"
    server = make_server(lines, environ=kerberos)
    for name, value in kerberos.items():
        monkeypatch.setenv(name, value)
    config = server.write_config("    GSSAPIAuthentication yes\n    HostName localhost")
    known = server.known_hosts.read_text().replace("127.0.0.1", "localhost")
    server.known_hosts.write_text(known)
    with reached(config, Answers({}, there=False)) as connection:
        assert isinstance(connection, OpensshConnection)
        assert stdout_of(connection.open("echo in", 10)) == b"in\n"
    assert "Accepted gssapi-with-mic" in (server.folder / "log").read_text()
