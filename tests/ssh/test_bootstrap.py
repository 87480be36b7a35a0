"""Bringing and starting the agent on a real sshd, and each way in which a node can refuse it."""

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from distconsole.errors import AgentError, NodeError, PythonError, ShellNoiseError, StorageError
from distconsole.model.cluster import Host
from distconsole.model.names import HostName
from distconsole.rpc.bootstrap import Bridge, open_bridge
from distconsole.rpc.pack import Pack, agent_pack, pack
from distconsole.ssh.choosing import ChosenTransport
from distconsole_agent.server.joining import OWNER, this_host
from fakes.disks import small_disk

NODE = Host(HostName("node"))

STAND_IN = pack(
    {
        "__main__.py": b"import sys, os\n"
        b"sys.stdout.write('distconsole-bridge 1 /py\\n'); sys.stdout.flush()\n"
        b"sys.stdout.write(' '.join(sys.argv[1:]) + '|' + os.environ.get('FROM_SETUP', '') + '\\0\\n')\n"
        b"sys.stdout.flush(); sys.stdin.read()\n",
        "distconsole_agent/__init__.py": b"",
    }
)
"""Speaks the bridge's first line and says how it was called: what is tried here is the way to it.

It has a package of the agent's name, so that the server's Python cannot find an agent that is installed there.
"""


@contextmanager
def joined(server, host: Host = NODE, agent: Pack = STAND_IN) -> Iterator[Bridge]:
    transport = ChosenTransport(str(server.ssh_config))
    connection = transport.connect(host)
    try:
        opened = open_bridge(connection, host, agent)
        yield opened
        opened.channel.close()
    finally:
        connection.close()
        transport.close()


@contextmanager
def bridge(server, host: Host = NODE, agent: Pack = STAND_IN) -> Iterator[tuple[Bridge, bytes]]:
    with joined(server, host, agent) as opened:
        line = opened.early
        while b"\0\n" not in line:
            line += opened.channel.recv(4096, 10)
        yield opened, line[:-2]


def failure(kind: type[NodeError], server, host: Host = NODE, agent: Pack = STAND_IN) -> NodeError:
    with pytest.raises(kind) as caught, bridge(server, host, agent):
        pass
    return caught.value


@pytest.mark.parametrize("way", ["paramiko", "openssh"])
def test_the_agent_is_pushed_once_and_found_again(server, way: str) -> None:
    host = replace(NODE, transport=way)
    with bridge(server, host) as (first, line):
        assert (first.pushed, line) == (True, b"bridge|")
    with bridge(server, host) as (second, _):
        assert not second.pushed
    file = server.cache / "distconsole" / STAND_IN.name
    assert file.read_bytes() == STAND_IN.content
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [entry.name for entry in file.parent.iterdir()] == [STAND_IN.name]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
@pytest.mark.parametrize("there", [False, True], ids=["empty", "with the file"])
def test_nothing_is_run_from_anothers_folder(server, there: bool) -> None:
    folder = server.cache / "distconsole"
    if there:
        with bridge(server):
            pass
    folder.mkdir(parents=True, exist_ok=True)
    os.chown(folder, 65534, 65534)
    error = failure(StorageError, server)
    assert "belongs to somebody else" in error.message
    assert [each.name for each in folder.iterdir()] == [STAND_IN.name] * there


def test_nothing_is_run_from_a_folder_that_others_write_to(server) -> None:
    folder = server.cache / "distconsole"
    folder.mkdir(parents=True)
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        error = failure(StorageError, server)
        assert "chmod go-w" in (error.hint or "")


def test_a_damaged_file_is_replaced(server) -> None:
    with bridge(server):
        pass
    file = server.cache / "distconsole" / STAND_IN.name
    damaged = bytearray(STAND_IN.content)
    damaged[60] ^= 1
    file.write_bytes(damaged)
    with bridge(server) as (opened, _):
        assert opened.pushed
    assert file.read_bytes() == STAND_IN.content


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder that leaves room for the name of a socket (unix(7))."""
    with TemporaryDirectory(prefix="dct-") as folder:
        yield Path(folder)


def test_an_agent_that_runs_is_joined_without_its_file_being_run(server, short_path: Path) -> None:
    host = replace(NODE, node_dir=str(short_path / "node dir"))
    file = server.cache / "distconsole" / STAND_IN.name
    (short_path / "node dir" / "runs").mkdir(parents=True)
    for folder in ("node dir", "node dir/runs"):
        (short_path / folder).chmod(0o700)
    with bridge(server, host) as (_, line):  # nobody listens yet: the file is brought and run
        assert line.startswith(b"bridge --node-dir")
    path = short_path / "node dir" / f"{file.stem}.sock"
    owner = short_path / "node dir" / OWNER
    with closing(socket.socket(socket.AF_UNIX)) as agent:
        agent.bind(str(path))
        agent.listen()
        agent.settimeout(20)
        owner.write_text("another host\n")  # it listens on a host that shares the folder
        with bridge(server, host) as (_, line):
            assert line.startswith(b"bridge --node-dir")
        agent.accept()[0].close()
        threading.Thread(target=_echo_once, args=(agent,), daemon=True).start()
        owner.write_text(this_host())
        with joined(server, host) as opened:
            assert Path(opened.python).name.startswith("python3")
            opened.channel.send(b"hello\n", 5)
            assert opened.channel.recv(100, 10) == b"hello\n"
        # A folder that others may enter, or a damaged file: then all is looked at as ever.
        (short_path / "node dir").chmod(0o755)
        with bridge(server, host) as (opened, line):
            assert (opened.pushed, line[:6]) == (False, b"bridge")
        (short_path / "node dir").chmod(0o700)
        file.write_bytes(STAND_IN.content[:-1])
        with bridge(server, host) as (opened, line):
            assert (opened.pushed, line[:6]) == (True, b"bridge")


def _echo_once(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.sendall(connection.recv(100))
        connection.recv(100)


@pytest.mark.parametrize("shell", ["bash", "dash", "zsh", "tcsh", "csh", "fish"])
def test_every_login_shell_starts_it(make_server, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    server = make_server(f'ForceCommand exec {shell} -c "$SSH_ORIGINAL_COMMAND"')
    setup = """export FROM_SETUP="it's \\"quoted\\" \\\\ !here \\$x
two lines"; echo noise"""
    host = replace(NODE, setup=setup, node_dir="/tmp/a b'c")
    with bridge(server, host) as (opened, line):
        assert opened.pushed
        assert line == b"""bridge --node-dir /tmp/a b'c|it's "quoted" \\ !here $x\ntwo lines"""
    with bridge(server, host) as (opened, _):
        assert not opened.pushed


def test_the_setup_s_environment_reaches_the_python(server, tmp_path: Path) -> None:
    bin_dir = tmp_path / "venv" / "bin"
    bin_dir.mkdir(parents=True)
    (bin_dir / "python3").write_text('#!/bin/sh\nFROM_SETUP=venv exec /usr/bin/python3 "$@"\n')
    (bin_dir / "python3").chmod(0o755)
    (bin_dir / "activate").write_text(f"PATH={bin_dir}:$PATH\n")
    with bridge(server, replace(NODE, setup=f"source {bin_dir}/activate")) as (_, line):
        assert line == b"bridge|venv"


def test_a_setup_is_in_no_command_line(server, tmp_path: Path) -> None:
    setup = f"export FROM_SETUP=marker-0123; cat /proc/[0-9]*/cmdline >{tmp_path}/looked || :"
    with bridge(server, replace(NODE, setup=setup)) as (_, line):
        assert line == b"bridge|marker-0123"
    told = (tmp_path / "looked").read_bytes()
    assert b"eval" in told
    assert b"marker-0123" not in told


def test_a_module_of_home_or_pythonpath_hides_none_of_ours(make_server, tmp_path: Path) -> None:
    mark, own = tmp_path / "mark", tmp_path / "own"
    own.mkdir()
    for name in ("json", "select", "hashlib", "pwd", "struct", "zlib"):
        (own / f"{name}.py").write_text(
            f"open({str(mark)!r}, 'a').write(__file__)\nraise SystemExit(9)\n"
        )
    server = make_server(f'ForceCommand cd {own}; exec sh -c "$SSH_ORIGINAL_COMMAND"')
    node_dir = str(tmp_path / "node")
    host = replace(NODE, setup=f"cd {own}; export PYTHONPATH={own}", node_dir=node_dir)
    for each in (host, replace(host, setup=None)):
        with joined(server, each, agent_pack()):  # it is brought, an agent starts; that is joined
            pass
    assert not mark.exists()


def test_a_setup_that_fails_says_with_what(server) -> None:
    error = failure(AgentError, server, replace(NODE, setup="echo no such module >&2; (exit 9)"))
    assert "exit code 9" in error.message
    assert "no such module" in error.message


@pytest.mark.parametrize("said", ["not found", "Kommando nicht gefunden."])
def test_a_setup_without_the_file_that_defines_module_is_told_of_it(server, said: str) -> None:
    error = failure(
        NodeError, server, replace(NODE, setup=f"echo 'sh: module: {said}' >&2; (exit 127)")
    )
    assert "file that defines module in front, such as . /etc/profile.d/modules.sh" in error.hint


def test_a_setup_that_reads_stdin_takes_nothing_of_ours(server) -> None:
    with bridge(server, replace(NODE, setup="cat >/dev/null")) as (_, line):
        assert line == b"bridge|"


def test_a_shell_that_prints_without_end_is_told_too(make_server) -> None:
    server = make_server("ForceCommand yes")
    error = failure(ShellNoiseError, server)
    assert "more than 1 MiB" in error.message
    assert "[[ $- == *i* ]] || return" in error.hint


def test_an_account_that_may_not_run_commands_is_told(make_server) -> None:
    server = make_server("ForceCommand echo This account is not available.; exit 1")
    error = failure(AgentError, server)
    assert "This account is not available." in error.message
    assert "exit code 1" in error.message


def test_no_python_is_told(server) -> None:
    error = failure(PythonError, server, replace(NODE, python="python9.99"))
    assert "python9.99 on the PATH of a non-interactive shell" in error.message
    assert "--python" in error.hint
    assert failure(NodeError, server, replace(NODE, python="~/no/python")).message.endswith(
        "~/no/python"
    )


def test_the_home_of_the_nodes_shell_is_told_where_it_is_a_path(server) -> None:
    for home in ("/home/u", ""):
        with bridge(server, replace(NODE, setup=f"export HOME='{home}'")) as (opened, _):
            assert opened.home == home


def test_a_python_that_cannot_be_run_is_told(server) -> None:
    broken = server.folder / "broken"
    broken.write_text("#!/nowhere/python\n")
    broken.chmod(0o755)
    failure(PythonError, server, replace(NODE, python=str(broken)))
    with bridge(server):
        pass
    failure(PythonError, server, replace(NODE, python=str(broken)))


OLD = [
    path
    for version in ("2.7.18", "3.6.15", "3.8.18")
    if (path := Path(f"~/.pyenv/versions/{version}/bin/python").expanduser()).exists()
]


@pytest.mark.skipif(not OLD, reason="no old Python here")
@pytest.mark.parametrize("python", OLD, ids=lambda path: path.parts[-3])
@pytest.mark.parametrize("there", [False, True])
def test_too_old_a_python_is_named_with_its_version(server, python: Path, there: bool) -> None:
    agent = agent_pack()
    if there:
        folder = server.cache / "distconsole"
        folder.mkdir(parents=True)
        (folder / agent.name).write_bytes(agent.content)
    error = failure(PythonError, server, replace(NODE, python=str(python)), agent)
    assert f"is Python {python.parts[-3]}; 3.9 or newer is needed" in error.message


def test_a_cache_that_cannot_be_made_is_told(make_server) -> None:
    server = make_server()
    server.cache.write_text("a file where the folder should be")
    error = failure(StorageError, server)
    assert str(server.cache) in error.message


@pytest.mark.parametrize(
    ("options", "words"), [("size=4k", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_full_or_read_only_cache_is_told(server, options: str, words: str) -> None:
    big = pack({"__main__.py": os.urandom(40_000)})
    with small_disk(server.cache, options):
        error = failure(NodeError, server, agent=big)
        left = list(server.cache.rglob("*agent*"))
    assert isinstance(error, StorageError)
    assert words in error.message
    assert "XDG_CACHE_HOME" in error.hint
    assert left == []


def test_another_place_for_the_file_can_be_set_up(server, tmp_path: Path) -> None:
    host = replace(NODE, setup=f"export XDG_CACHE_HOME={tmp_path}/elsewhere")
    server.cache.write_text("unusable")
    with bridge(server, host) as (opened, _):
        assert opened.pushed
    assert (tmp_path / "elsewhere" / "distconsole" / STAND_IN.name).exists()


def test_a_python_that_crashes_is_told_with_its_last_words(server) -> None:
    broken = pack({"__main__.py": b"raise RuntimeError('no luck \\x1b[2J today')\n"})
    error = failure(AgentError, server, agent=broken)
    assert "RuntimeError: no luck  today" in error.message


def test_a_python_that_prints_at_its_start_is_told(server) -> None:
    chatty = pack({"__main__.py": b"print('hello from sitecustomize'); input()\n"})
    error = failure(AgentError, server, agent=chatty)
    assert "'hello from sitecustomize'" in error.message


@pytest.mark.parametrize(
    ("code", "kind"),
    [("storage", StorageError), ("python", PythonError), ("internal", AgentError)],
)
def test_a_bridge_that_cannot_serve_says_why(server, code: str, kind: type[NodeError]) -> None:
    line = f'{{"error": {{"code": "{code}", "message": "because", "hint": "do this"}}}}'
    refusing = pack({"__main__.py": f"print({line!r}); raise SystemExit(1)\n".encode()})
    error = failure(NodeError, server, agent=refusing)
    assert type(error) is kind
    assert error.message == "node: because"
    assert error.hint == "do this"


def test_a_node_folder_open_to_others_is_told(server) -> None:
    folder = server.folder / "open"
    folder.mkdir()
    folder.chmod(0o755)
    error = failure(StorageError, server, replace(NODE, node_dir=str(folder)), agent_pack())
    assert f"{folder} is open to others (mode 0755)" in error.message
    assert error.hint == f"look what is in it, then: chmod 700 {folder}"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("way", ["paramiko", "openssh"])
def test_what_is_printed_between_our_words_is_skipped(server, tmp_path: Path, way: str) -> None:
    python = tmp_path / "python"
    python.write_text(
        '#!/bin/sh\necho late\nprintf "no newline"\ncase "$*" in *" bridge") ;; *) echo;; esac\n'
        'exec /usr/bin/python3 "$@"\n'
    )
    python.chmod(0o755)
    with bridge(server, replace(NODE, python=str(python), transport=way)) as (_, line):
        assert line == b"bridge|"
    python.write_text("#!/bin/sh\nwhile echo late; do :; done\n")
    error = failure(NodeError, server, replace(NODE, python=str(python), transport=way))
    assert "more than 64 KiB: 'late late" in error.message
    assert "a background job of a start-up file" in error.hint
