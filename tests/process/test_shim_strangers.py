"""Another user of a run's node: what a real shim keeps from him."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.shims import RunUnderTest, wait_until
from suite.programs import run_to_end

NOBODY = 65534

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root, and setpriv (Debian: util-linux), to be another user",
)

ASK = """
import socket, sys, time
port, hangs_up, text = int(sys.argv[1]), sys.argv[2] == "hangs up", sys.argv[3]
with socket.create_connection(("127.0.0.1", port), 10) as sock:
    sock.settimeout(10)
    sock.sendall(text.encode().decode("unicode_escape").encode())
    if not hangs_up:
        try:
            print(sock.recv(100).decode())
        except ConnectionResetError:
            print()
"""

LISTEN = """
import socket, sys
with socket.socket() as sock:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("0.0.0.0", int(sys.argv[1])))
    sock.listen()
    print("listens", flush=True)
    while True:
        sock.accept()
"""

PUT = r"PUT /global/0 HTTP/1.1\r\nContent-Length: 5\r\n\r\nfalse"
GET = r"GET /global/0 HTTP/1.1\r\n\r\n"


def python_of(user: int, text: str, *arguments: object) -> list[str]:
    words = [sys.executable, "-c", text, *map(str, arguments)]
    ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
    return words if user == 0 else ["setpriv", *ids, *words]


def ask(user: int, port: int, text: str, how: str = "waits") -> str:
    command = python_of(user, ASK, port, how, text)
    done = run_to_end(command, check=True, cwd="/")
    return done.stdout.strip()


@contextmanager
def listening(user: int, port: int) -> Iterator[None]:
    """Have another program listen on a port."""
    process = subprocess.Popen(
        python_of(user, LISTEN, port), stdout=subprocess.PIPE, text=True, cwd="/"
    )
    try:
        assert process.stdout.readline() == "listens\n"
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[RunUnderTest]:
    with RunUnderTest(tmp_path, ["sleep", "600"]) as run:
        yield run


def stop(run: RunUnderTest) -> None:
    run.shims[0].ask(op="stop", reason="user")
    run.verdict()


def test_horovods_store_answers_no_other_user(tmp_path: Path) -> None:
    with RunUnderTest(tmp_path, ["sleep", "600"], launcher="horovod") as run:
        port = int(run.shims[0].ask(op="status")["master_port"])
        run.start()
        assert ask(NOBODY, port, PUT) == ""
        assert ask(NOBODY, port, GET) == ""
        ask(NOBODY, port, PUT, "hangs up")
        assert ask(0, port, GET).split()[1] == "404"
        note = run.shims[0].event("note")
        assert note["check"] == "run.stranger"
        assert ask(0, port, PUT).split()[1] == "200"
        stop(run)


def test_another_user_who_listens_where_ranks_meet_ends_the_run(waiting: RunUnderTest) -> None:
    port = int(waiting.shims[0].ask(op="status")["master_port"])
    waiting.start()
    waiting.shims[0].pid(0)
    with listening(NOBODY, port):
        verdict = waiting.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("failed", 1)
    told = verdict["first_failure"]["error"]
    assert f"port {port}" in told
    assert "nobody" in told
    (note,) = waiting.shims[0].events("note")
    assert (note["check"], note["severity"]) == ("run.port", "fail")


def test_nothing_is_started_where_another_user_listens_already(waiting: RunUnderTest) -> None:
    port = int(waiting.shims[0].ask(op="status")["master_port"])
    with listening(NOBODY, port):
        (answer,) = waiting.start()
        assert "nobody" in answer["error"]["message"]
        assert waiting.verdict()["state"] == "failed"
    assert not waiting.shims[0].events("started")


def test_a_process_of_the_run_may_listen(tmp_path: Path) -> None:
    listens = ["sh", "-c", f'exec {sys.executable} -c "$0" "$MASTER_PORT"', LISTEN]
    with RunUnderTest(tmp_path, listens) as run:
        port = int(run.shims[0].ask(op="status")["master_port"])
        run.start()
        wait_until("a listener", lambda: run.shims[0].log(0))
        told = run_to_end(python_of(NOBODY, LISTEN, port), cwd="/")
        assert "Address already in use" in told.stderr
        assert not run.shims[0].events("note")
        stop(run)
