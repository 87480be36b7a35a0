"""Each way in of ways_in.yaml, by the system's ssh and by distconsole: both get in, or one line says what to change.

A row has, where it needs them,

* ``config``: lines of ssh_config, which stand before what leads to the server; ``host``: the name that is typed (node);
* ``own_keys``: true where no key is named behind ``config``;
* ``sshd``: lines of the server's sshd_config; ``servers``: how many there are (1), for jump hosts;
* ``prepare``: lines of bash that are run before the servers start, in ``{folder}``; ``env``: variables of the console;
* ``way``: the transport (auto); ``runs``: the command (true), which prints the same by both;
* ``ssh``: ``fails`` where ssh does not get in; ``says``: parts of the error where distconsole does not; ``why``: why the
  two differ; ``since``: the version of OpenSSH that knows such lines.

Filled in are ``{folder}``, ``{user}``, ``{key}`` (a private key that the servers take), ``{rsa}`` (one that they do not),
``{known}`` (the known_hosts file) and, by number, ``{port1}``, ``{host1}`` (a server's public key) and ``{private1}`` (the file of its private key).
"""

import getpass
import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

from distconsole.errors import ConsoleError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.ssh.choosing import ChosenTransport
from fakes.sshd import SSHD, SshServer, end_processes_of, make_key
from suite.programs import run_to_end

ROWS: dict[str, dict[str, Any]] = yaml.load(
    Path(__file__).with_name("ways_in.yaml").read_text(), yaml.CSafeLoader
)
BASE = """
Match all
    HostName 127.0.0.1
    Port {port1}
    User {user}
    UserKnownHostsFile {known}
    GlobalKnownHostsFile /dev/null
"""
ONE_KEY = "    IdentityFile {key}\n    IdentityAgent none\n"


def client_version() -> float:
    said = run_to_end(["ssh", "-V"]).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return float(f"{found[1]}.{found[2]}") if found else 0.0


def come_in(config: Path, host: Host, command: str) -> ConsoleError | str:
    """Run ``command`` on ``host`` over distconsole's connection; return what it prints, or the error."""
    transport = ChosenTransport(str(config))
    try:
        connection = transport.connect(host)
        try:
            channel, printed = connection.open(command, 10), b""
            while data := channel.recv(4096, 10):
                printed += data
            assert channel.exit_code(10) == 0
        finally:
            connection.close()
    except ConsoleError as error:
        return error
    finally:
        transport.close()
    return printed.decode()


def run_ssh(config: Path, host: str, command: str) -> subprocess.CompletedProcess[str]:
    """Run ``command`` on ``host`` by the system's ssh, without a terminal."""
    return run_to_end(
        ["ssh", "-F", config, host, command],
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "DISPLAY"},
    )


@pytest.fixture(scope="module")
def rsa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a key that takes long to make."""
    path = tmp_path_factory.mktemp("keys") / "rsa"
    make_key(path, "rsa")
    return path


@pytest.mark.skipif(SSHD is None, reason="no sshd here (openssh-server)")
@pytest.mark.parametrize("name", ROWS)
def test_what_ssh_can_do_is_done_or_one_line_says_what_to_change(
    name: str, rsa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ROWS[name]
    if client_version() < row.get("since", 0.0):
        pytest.skip(f"ssh before OpenSSH {row['since']} does not know such lines")
    with ExitStack() as stack:
        # A socket's path may not be long.
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="w", dir="/tmp")))
        stack.callback(end_processes_of, folder)
        servers = [
            SshServer(folder / f"s{number}", lines=row.get("sshd", ""))
            for number in range(row.get("servers", 1))
        ]
        known = folder / "known_hosts"
        known.write_text("".join(each.known_hosts.read_text() for each in servers))
        places = {"folder": folder, "user": getpass.getuser(), "known": known}
        places |= {"key": servers[0].user_key, "rsa": rsa}
        for number, each in enumerate(servers, 1):
            (each.folder / "authorized").write_text(f"{servers[0].public}\n")
            places |= {f"port{number}": each.port, f"host{number}": each.host_public}
            places[f"private{number}"] = each.folder / "host"

        def fill(text: str) -> str:
            return re.sub(r"\{(\w+)\}", lambda f: str(places.get(f[1], f[0])), text)

        for variable, value in row.get("env", {}).items():
            monkeypatch.setenv(variable, fill(value))
        prepare = ["bash", "-ec", fill(row.get("prepare", ""))]
        subprocess.run(prepare, cwd=folder, check=True, timeout=60, stdout=subprocess.DEVNULL)
        for each in servers:
            each._lines = fill(each._lines)
            stack.callback(each.cut)
            each.start()
        base = BASE + ("" if row.get("own_keys") else ONE_KEY)
        config, host = folder / "config", row.get("host", "node")
        config.write_text(fill(row.get("config", "") + base))
        command = row.get("runs", "true")
        named = Host(HostName(host), transport=row.get("way"))
        error = come_in(config, named, command)  # before ssh itself, which may add a host key
        by_hand = run_ssh(config, host, command)
        assert (by_hand.returncode == 0) is (row.get("ssh") != "fails"), by_hand.stderr
    if "says" not in row:
        assert error == by_hand.stdout or row.get("ssh") == "fails", repr(error)
        assert isinstance(error, str), f"{error!r} {error.hint}"
        return
    assert isinstance(error, ConsoleError), "distconsole gets in"
    said = f"{error.message}\n{error.hint}"
    assert "\n" not in error.message
    assert [fill(part) for part in row["says"] if fill(part) not in said] == [], said
