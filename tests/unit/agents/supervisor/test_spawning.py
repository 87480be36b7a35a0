"""How programs are started on a node.
What ranks print into pipes reaches their logs, or is counted.
The shim as a program: a start waits for it, so it begins with no more than a start needs.
"""

import errno
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distconsole_agent.probes.programs import run_program
from distconsole_agent.supervisor import spawning
from distconsole_agent.supervisor.rank_output import RankOutput
from distconsole_agent.supervisor.spawning import ChildCommand, login_shell, spawn
from distconsole_agent.system.loop import Loop
from fakes.shims import wait_until
from suite.programs import run_to_end


def test_the_shell_for_a_command_is_one_that_may_be_run() -> None:
    assert os.access(login_shell(), os.X_OK)


@pytest.mark.parametrize("memfd", [True, False])
@pytest.mark.parametrize("bash", [True, False])
def test_a_setup_is_in_no_command_line(
    tmp_path: Path, bash: bool, memfd: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not memfd:  # as in a Python that was built against an old C library
        monkeypatch.delattr(os, "memfd_create")
    if not bash:
        monkeypatch.setattr(
            spawning.os.path,
            "exists",
            lambda path, real=os.path.exists: "bash" not in path and real(path),
        )
    setup = f"export TOKEN='marker 0123'; cat /proc/[0-9]*/cmdline >{tmp_path}/looked"
    ended = run_program(("sh", "-c", 'echo "$TOKEN" "$#" "$0" "$1"', "x", "y z"), 20, setup)
    assert (ended.out, ended.exit_code) == ("marker 0123 1 x y z\n", 0)
    told = (tmp_path / "looked").read_bytes()
    assert b"distconsole_setup" in told
    assert b"marker 0123" not in told


def test_a_setup_leaves_no_variable_of_ours_behind(tmp_path: Path) -> None:
    # With SHELLOPTS of a user's, bash exports each variable that it sets.
    env = {**os.environ, "SHELLOPTS": "allexport"}
    ended = run_program(("env",), 20, "export OWN=1", env=env)
    assert "OWN=1\n" in ended.out
    assert "distconsole_" not in ended.out


def test_a_spawn_that_fails_leaves_no_descriptor_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(flags: int) -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    command = ChildCommand(("true",), os.environ, "/", "true", "/dev/null", "/dev/null")
    monkeypatch.setattr(os, "pipe2", refuse)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(OSError, match="Too many open files"):
        spawn(command)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


ROOM = 1 << 30


def test_what_a_passing_error_held_back_is_in_the_log_without_a_gap(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    output = RankOutput(Loop(), str(tmp_path), ROOM, lambda _logs, _over: None)
    pipe = output.pipe("rank-0.out")
    with Path(pipe).open("wb", buffering=0) as rank:
        with _no_file_grows():
            rank.write(b"first\n")
            wait_until("a drop", lambda: output.dropped())
        rank.write(b"second\n")
        output.close()
    assert (tmp_path / "logs" / "rank-0.out").read_bytes() == b"first\nsecond\n"
    assert output.dropped() == []


@contextmanager
def _no_file_grows() -> Iterator[None]:
    """Let every write to a file fail (EFBIG), as a disk that has gone would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_shim_begins_without_what_only_ends_need_and_never_loads_openssl() -> None:
    late = ("distconsole_agent.supervisor.postmortem",)
    program = (
        "import sys, distconsole_agent.supervisor.shim_program; "
        "from distconsole_agent.supervisor.shim import load_late; "
        f"loaded = lambda: [name for name in {(*late, '_hashlib')!r} if name in sys.modules]; "
        "print(loaded()); load_late(); print(loaded())"
    )
    done = run_to_end([sys.executable, "-c", program], check=True)
    assert done.stdout == f"[]\n{list(late)}\n"
