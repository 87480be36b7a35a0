"""Ranks that are forked from a process with torch imported live and end as started ones do."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole_agent import probes
from distconsole_agent.probes.scripts import script_source
from distconsole_agent.probes.software.python_env import _agent_pipe
from fakes.shims import wait_until
from suite.programs import run_to_end

_agent_pipe()  # open as long as this process, as an agent has it

RANK = (
    script_source("probes.collectives.preloaded")
    + """
if len(sys.argv) > 2:
    be_forked(sys.argv[2], sys.argv[:2])
print(os.getpid(), "torch" in sys.modules, os.environ["RANK"], flush=True)
exec(sys.argv[1])
"""
)

LIMITS = {
    "nofile": "ulimit -n 100; ",
    "umask": "umask 077; ",
    "folder": "cd /tmp; ",
    "oom_score_adj": "echo 500 >/proc/self/oom_score_adj; ",
    "no_new_privs": 'set -- setpriv --no-new-privs "$@"; ',
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The token of a process that has imported a small torch."""
    (tmp_path / "torch.py").write_text("__version__ = '9.9'\nclass _C: pass\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.setenv("PWD", "/")  # as a shell there sets it
    token = secrets.token_hex(16)
    asked = {"token": token, "serve_seconds": 60.0}
    assert probes.run("import", asked, 20.0)["version"] == "9.9"
    yield token
    probes.run("import.end", {"token": token}, 5.0)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of the test's set-up: pytest names the phase in a variable."""
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return {**own, **more}


def is_served(token: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(f"\0{token}") == 0


def start(server: str, does: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", RANK, does, server],
        env=environment(RANK="3"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )


@pytest.mark.parametrize(
    ("does", "code", "error"),
    [
        ("", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("raise ValueError('its own')", 1, "ValueError: its own"),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15, ""),
        ("os.kill(os.getpid(), signal.SIGABRT)", -6, ""),
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
    ],
)
def test_a_rank_ends_as_its_forked_process(server: str, does: str, code: int, error: str) -> None:
    rank = start(server, does)
    out, err = rank.communicate(timeout=60)
    pid, has_torch, number = out.split()
    assert (int(pid) != rank.pid, has_torch, number, rank.returncode) == (True, "True", "3", code)
    assert error in err


def test_a_forked_rank_has_the_descriptors_of_a_started_one_and_a_session(server: str) -> None:
    does = "print(sorted(os.listdir('/proc/self/fd')), os.getsid(0) == os.getpgid(0))"
    forked, started = (
        start(name, does).communicate(timeout=60)[0].split("\n")[:2]
        for name in (server, secrets.token_hex(16))
    )
    assert [forked[0].split()[1], started[0].split()[1]] == ["True", "False"]
    assert forked[1] == started[1].replace("False", "True")


def test_two_hosts_that_are_one_machine_have_one_process_with_torch(server: str) -> None:
    assert probes.run("import", {"token": server, "serve_seconds": 60.0}, 20.0)["version"] == "9.9"
    assert start(server).communicate(timeout=60)[0].split()[1] == "True"


def test_what_was_forked_is_killed_with_the_rank(server: str) -> None:
    rank = start(server, "signal.pause()")
    assert rank.stdout is not None
    with rank:
        assert rank.stdout.readline()
        rank.kill()
        assert rank.stdout.read() == ""  # until every process that holds it is gone


def test_an_import_that_was_ended_too_early_leaves_no_process(server: str) -> None:
    token = secrets.token_hex(16)
    assert probes.run("import.end", {"token": token}, 5.0) == {"ending": False}
    probes.run("import", {"token": token, "serve_seconds": 60.0}, 20.0)
    assert not is_served(token)
    assert is_served(server)


def test_a_process_with_torch_ends_with_its_agent(server: str) -> None:
    token = secrets.token_hex(16)
    asked = {"token": token, "serve_seconds": 60.0}
    agent = (
        "import sys; from distconsole_agent import probes\n"
        f"probes.run('import', {asked}, 20.0); print(flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", agent]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        assert is_served(token)
        process.kill()
    wait_until("the end of the process with torch", lambda: not is_served(token))


def test_no_process_stays_for_no_time(server: str) -> None:
    token = secrets.token_hex(16)
    assert probes.run("import", {"token": token}, 20.0)["version"] == "9.9"
    assert not is_served(token)


@pytest.mark.parametrize(
    "change", ["nothing", "TORCH_ANY=1", "LD_LIBRARY_PATH=/none", *LIMITS, "ended"]
)
def test_only_a_rank_whose_surroundings_differ_runs_by_itself(server: str, change: str) -> None:
    words = [sys.executable, "-c", RANK, "", server]
    if change == "ended":
        assert probes.run("import.end", {"token": server}, 5.0) == {"ending": True}
        assert probes.run("import.end", {"token": server}, 5.0) == {"ending": False}
    name, _, value = change.partition("=")
    done = run_to_end(
        ["sh", "-c", f'{LIMITS.get(change, "")}echo $$; exec "$@"', "sh", *words],
        env=environment(RANK="0", **({name: value} if value else {})),
        cwd="/",
        check=True,
    )
    started, rank, has_torch, _ = done.stdout.split()
    alone = change != "nothing"
    assert (rank == started, has_torch) == (alone, str(not alone))
