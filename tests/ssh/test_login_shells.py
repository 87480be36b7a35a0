"""Login shells that print, and those that become another one or wait: known within seconds, with the line of the start-up file."""

import shutil
import time
from collections.abc import Iterator

import pytest

from distconsole.errors import AgentError, NodeError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.rpc import login_shell
from distconsole.rpc.login_shell import open_shell
from distconsole.ssh.choosing import ChosenTransport
from fakes.accounts import Accounts, lacks_accounts
from fakes.sshd import SshServer

pytestmark = pytest.mark.skipif(bool(lacks_accounts()), reason=lacks_accounts() or "there are")

SHELLS = {"ada": "/bin/bash", "zoe": "/usr/bin/zsh", "fi": "/usr/bin/fish", "sue": "/bin/sh"}
SECONDS = 10.0
"""What blocks is known 3 s after the login, on a machine that does nothing else."""


@pytest.fixture(scope="module")
def accounts() -> Iterator[Accounts]:
    made = Accounts(SHELLS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def server(accounts: Accounts) -> SshServer:
    return accounts.serve("AcceptEnv GROUP")


def begin(server: SshServer, user: str, way: str = "paramiko") -> bytes:
    """Log in, and return what the shell says to a command."""
    host = Host(HostName("node"), user=user, transport=way)
    transport = ChosenTransport(str(server.ssh_config))
    connection = transport.connect(host)
    try:
        channel, _ = open_shell(connection, host, "7a11")
        channel.send(b"echo in\n", 5)
        said: bytes = channel.recv(100, 5)
        return said
    finally:
        connection.close()
        transport.close()


def failure(server: SshServer, user: str, way: str = "paramiko") -> NodeError:
    began = time.monotonic()
    with pytest.raises(NodeError) as caught:
        begin(server, user, way)
    assert time.monotonic() - began < SECONDS
    return caught.value


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Ask sooner than a person would like."""
    if "openssh" not in request.node.name:
        monkeypatch.setattr(login_shell, "SILENT_SECONDS", 0.4)


@pytest.fixture
def home(accounts: Accounts) -> Iterator[Accounts]:
    """The homes, which are empty again behind a test."""
    yield accounts
    for name in SHELLS:
        for file in accounts.home(name).iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()


BECOME = {
    "exec zsh": ("ada", ".bashrc", "export SHELL=/usr/bin/zsh\nexec $SHELL -l\n", 2, "/usr/bin/zsh -l"),
    "printing too": ("ada", ".bashrc", "echo hello\nexec zsh\n", 2, "zsh"),
    "exec fish": ("ada", ".bashrc", "\n\nexec fish\n", 3, "fish"),
    "inner bash": ("ada", ".bashrc", "bash\n", 1, "bash"),
    "in another file": ("ada", ".bash_aliases", "# mine\nif true; then\n  exec zsh\nfi\n", 3, "zsh"),
    "by a function": ("ada", ".bashrc", "scl() {\n  $3\n}\nscl enable x bash\n", 2, "bash"),
    "from zsh": ("zoe", ".zshenv", "X=1\nexec bash\n", 2, "bash"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("case", "way"), [*((case, "paramiko") for case in BECOME), ("exec zsh", "openssh")]
)
def test_a_shell_s_exec_is_named(server: SshServer, home: Accounts, case: str, way: str) -> None:
    user, file, text, line, shell = BECOME[case]
    home.put(user, {".bashrc": ". HOME/.bash_aliases\n", file: text})
    error = failure(server, user, way)
    assert isinstance(error, AgentError)
    assert f"the login shell became another one, {shell}, and runs no command" in error.message
    place = home.home(user) / file
    assert f"{place}:{line}: " in error.message
    assert f"put [[ $- == *i* ]] || return above line {line} of {place}" in error.hint
    put = (home.home(user) / file).read_text().splitlines()
    put.insert(line - 1, "[[ $- == *i* ]] || return")
    home.put(user, {file: "\n".join(put)})
    assert begin(server, user, way) == b"in\n"


def test_only_of_bash_and_zsh_a_line_is_named(server: SshServer, home: Accounts) -> None:
    home.put("fi", {".config/fish/config.fish": "exec bash\n"})
    error = failure(server, "fi")
    assert "became another one, bash, and runs no command" in error.message
    assert "at the top of its start-up file" in error.hint


def test_a_start_up_file_that_waits_for_input_is_named(server: SshServer, home: Accounts) -> None:
    home.put("ada", {".bashrc": "\nread -r answer\n"})
    error = failure(server, "ada")
    assert "a start-up file of the login shell waits for input" in error.message
    assert f"{home.home('ada')}/.bashrc:2: read -r answer" in error.message


def test_a_program_in_the_place_of_the_shell_is_an_end(server: SshServer, home: Accounts) -> None:
    home.put("ada", {".bashrc": "exec cat\n"})
    assert (
        "the login shell ended (exit code 0) before it ran our command"
        in failure(server, "ada").message
    )
    home.put("ada", {".bashrc": "exec tmux\n"})
    error = failure(server, "ada")
    assert "not a terminal" in error.message
    assert (
        "does a start-up file end the shell (exit, exec)? [[ $- == *i* ]] || return" in error.hint
    )
    home.put("ada", {".bashrc": "export PATH=/opt/cuda/bin\n"})
    home.put("zoe", {".zshenv": "export PATH=/opt/cuda/bin\n"})
    home.put("fi", {".config/fish/config.fish": "set PATH /opt/cuda/bin\n"})
    for user in ("ada", "zoe", "fi"):
        assert "export PATH=DIR:$PATH" in failure(server, user).hint


@pytest.mark.parametrize("lines", ["", "MaxSessions 1"])
def test_a_slow_shell_is_waited_for(accounts: Accounts, home: Accounts, lines: str) -> None:
    server = accounts.serve(lines)
    home.put("ada", {".bashrc": "sleep 1\n"})
    assert begin(server, "ada") == b"in\n"
    server.stop()


NOISE = {
    "bashrc": ("ada", {".bashrc": "X=1\necho Welcome, ada\n"}),
    "without a newline": ("ada", {".bashrc": "printf hello\n"}),
    "a long banner": ("ada", {".bashrc": "seq 40000\n"}),
    "a trace": ("ada", {".bashrc": "BASH_XTRACEFD=1\nset -x\n"}),
    "zshenv": ("zoe", {".zshenv": "true\necho hi\n"}),
    "ssh/rc": ("ada", {".ssh/rc": "echo logged in\n"}),
}


@pytest.mark.parametrize(
    ("case", "way"), [*((case, "paramiko") for case in NOISE), ("bashrc", "openssh")]
)
def test_start_up_files_may_print(server: SshServer, home: Accounts, case: str, way: str) -> None:
    user, files = NOISE[case]
    home.put(user, files)
    assert begin(server, user, way) == b"in\n"
