"""A ``distconsole`` for scripts of bash that is forked off a process which has imported it: a start costs 0.3 s of a core.

It has the arguments, folder, environment and streams of its caller, which ends with its exit code.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        connection.sendall(b"%d" % (code if code >= 0 else 128 - code))
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
sys.exit(int(connection.recv(9)))
"""


@contextmanager
def forked_console(folder: Path) -> Iterator[str]:
    """Yield the definition of ``distconsole`` as a function of bash; ``folder`` has the socket."""
    address = folder / "console.sock"
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(address)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n"
        words = shlex.join([sys.executable, "-ISc", CLIENT, str(address)])
        yield f'distconsole() {{ {words} "$@"; }}; '
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()
