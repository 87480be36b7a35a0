"""A ``distconsole`` that is forked off a process which has imported it: a start costs 0.3 s of a core.

It has the arguments, folder, environment and streams of its caller. The program itself is started by ``test_readme``,
``test_run_demo`` and the strangers that reach no host.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from testbed.keeper import die_with_keeper

SERVER = """\
import contextlib, importlib, json, os, pkgutil, signal, socket, sys, time
import distconsole
for module in pkgutil.walk_packages(distconsole.__path__, "distconsole."):
    if not module.name.startswith("distconsole.tui"):
        with contextlib.suppress(ImportError):  # of an extra
            importlib.import_module(module.name)
from distconsole import __main__ as program
from distconsole.rpc.pack import agent_pack
agent_pack()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # which reaps
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
while True:
    connection, _ = listener.accept()
    if os.fork():
        connection.close()
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while part := connection.recv(1 << 20):
        text += part
    if child := os.fork():
        for stream in streams:
            os.close(stream)
        socket.send_fds(connection, [b"."], [os.pidfd_open(child)])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(b"%d" % code)
        os._exit(0)
    listener.close()
    connection.close()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)
    sys.argv[1:], folder, environment = json.loads(text)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    program.BEGAN = time.monotonic()
    program.main()
"""

CLIENT = """\
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
asked = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(connection, [asked[:1]], [0, 1, 2])
connection.sendall(asked[1:])
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
code = int(connection.recv(9))
sys.exit(code if code >= 0 else 128 - code)
"""


class ForkedConsole:
    """A console that the server at ``address`` has forked; what tests use of ``subprocess.Popen``."""

    def __init__(
        self, address: Path, words: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        pipes = [os.pipe() for _ in range(2)]
        self.stdout, self.stderr = (os.fdopen(read, encoding="utf-8") for read, _ in pipes)
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(address))
        asked = json.dumps([words, str(Path.cwd()), dict(environment)]).encode()
        streams = [os.open(os.devnull, os.O_RDONLY), *(write for _, write in pipes)]
        socket.send_fds(self._connection, [asked[:1]], streams)
        for stream in streams:
            os.close(stream)
        self._connection.sendall(asked[1:])
        self._connection.shutdown(socket.SHUT_WR)
        _, (self._pidfd,), _, _ = socket.recv_fds(self._connection, 1, 1)
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the console has been waited for."""
        if self.returncode is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float | None = None) -> int:
        """Wait for its end; return the exit code, negative for a signal.

        Raises:
            TimeoutError: if it goes on for longer.
        """
        if self.returncode is None:
            self._connection.settimeout(seconds)
            self.returncode = int(self._connection.recv(9))
            self._connection.close()
            os.close(self._pidfd)
        return self.returncode


@contextmanager
def console_server(folder: Path) -> Iterator[Path]:
    """Yield the address of a server of consoles, a socket in ``folder``."""
    address = folder / "console.sock"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(address)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_keeper,  # as a Ctrl-C ends workers without their fixtures
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n"
        yield address
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def forked_console(address: Path) -> str:
    """Return the definition of ``distconsole`` as a function of bash, by the server at ``address``."""
    words = shlex.join([sys.executable, "-ISc", CLIENT, str(address)])
    return f'distconsole() {{ {words} "$@"; }}; '
