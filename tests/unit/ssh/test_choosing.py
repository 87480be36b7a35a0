"""What says that keys are not enough, and how long a person is waited for."""

import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from distconsole.errors import ConnectError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.ssh import asking, paramiko_transport
from distconsole.ssh.asking import LoginQuestion, Person
from distconsole.ssh.choosing import ChosenTransport
from distconsole.ssh.paramiko_transport import ParamikoTransport
from distconsole.ssh.ssh_config import SshConfig

A = Host(HostName("a"))


class Silent:
    """Somebody who answers when ``says`` is set."""

    def __init__(self) -> None:
        self.asked, self.says = threading.Event(), threading.Event()

    def can_ask(self) -> bool:
        return True

    def ask(self, question: LoginQuestion, wanted: Callable[[], bool]) -> str | None:
        self.asked.set()
        self.says.wait(20)
        return question.host


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("User ada", False),
        ("GSSAPIAuthentication yes", False),
        ("PubkeyAuthentication yes", False),
        ("PubkeyAuthentication no", True),
        ("PreferredAuthentications publickey,password", False),
        ("PreferredAuthentications keyboard-interactive,password", True),
        ("PKCS11Provider none", False),
        ("PKCS11Provider /usr/lib/opensc-pkcs11.so", True),
        ("SecurityKeyProvider internal", False),
        ("SecurityKeyProvider /usr/lib/sk.so", True),
        ("HostbasedAuthentication yes", True),
        ("IdentityFile ~/.ssh/id_ed25519_sk", True),
        ("ControlPath /nowhere/%C", False),
    ],
)
def test_ssh_config_says_who_may_ask(tmp_path: Path, line: str, asks: bool) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host b\n    ProxyJump a\nHost a\n    {line}\n")
    transport = ChosenTransport(str(config))
    behind = Host(HostName("b"))
    forced = Host(HostName("c"), transport="openssh")
    keys = Host(HostName("a"), transport="paramiko")
    expected = ([A, behind] if asks else []) + [forced]
    assert transport.who_may_ask([A, behind, forced, keys]) == expected


def test_what_is_typed_at_once_is_a_questions_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    person, terminal = os.openpty()
    write = asking._write

    def written(to: int, text: str) -> None:
        write(to, text)
        if "code?" in text:
            os.write(person, b"4711\n")

    monkeypatch.setattr(asking, "_write", written)
    until = time.monotonic() + 10
    try:
        question = LoginQuestion("a", "code?")
        answer = asking.TerminalAsker()._read(terminal, question, lambda: time.monotonic() < until)
    finally:
        os.close(terminal)
        os.close(person)
    assert answer == "4711"


def test_no_deadline_runs_while_a_person_is_asked() -> None:
    silent = Silent()
    person = Person(silent)
    before = time.monotonic()
    answers: list[str | None] = []

    def ask(host: str) -> None:
        answers.append(person.ask(LoginQuestion(host, "code?"), lambda: True))

    threads = [threading.Thread(target=ask, args=(host,)) for host in ("a", "b")]
    for thread in threads:
        thread.start()
    assert silent.asked.wait(20)
    assert person.is_asked
    assert person.working_seconds() == person.working_seconds()
    assert person.working_seconds(before) == before
    silent.says.set()
    for thread in threads:
        thread.join()
    assert sorted(filter(None, answers)) == ["a", "b"]
    assert not person.is_asked
    assert person.working_seconds(before) == before
    after = time.monotonic()
    assert before < person.working_seconds(after) < after


def test_a_list_of_algorithms_of_which_paramiko_has_none_bothers_no_server(tmp_path: Path) -> None:
    config = tmp_path / "config"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        config.write_text(
            f"Host a\n HostName 127.0.0.1\n Port {port}\n MACs umac-64@openssh.com\n"
        )
        ssh_config = SshConfig(str(config))
        with pytest.raises(ConnectError, match="macs in ssh_config leaves no algorithm") as caught:
            ParamikoTransport(ssh_config).connect(ssh_config.lookup("a"))
        assert caught.value.ssh_may
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_an_algorithm_is_listed_by_either_of_its_names(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host a\n KexAlgorithms curve25519-sha256\n")
    left = paramiko_transport.allowed_algorithms(SshConfig(str(config)).lookup("a"))
    assert left == {"kex": ["curve25519-sha256@libssh.org"]}
