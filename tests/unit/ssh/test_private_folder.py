"""The folder of ssh's sockets: what a killed program left goes away, what a living one uses stays."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from distconsole.ssh.openssh_login import YOUNG_SECONDS, PrivateFolder
from suite.programs import run_to_end


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where such folders are made."""
    with TemporaryDirectory(prefix="pf", dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


def make_old(folder: Path) -> None:
    past = folder.stat().st_mtime - 2 * YOUNG_SECONDS
    os.utime(folder, (past, past))


def test_what_a_killed_program_left_is_taken_away_by_the_next(place: Path) -> None:
    program = (
        "import os, signal; from distconsole.ssh.openssh_login import PrivateFolder;"
        "folder = PrivateFolder(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program], check=False, timeout=30)
    (left,) = place.iterdir()
    make_old(left)
    ours = PrivateFolder()
    assert list(place.iterdir()) == [ours.path]
    ours.close()
    assert not list(place.iterdir())


def test_what_is_used_or_young_or_somebody_else_s_stays(place: Path) -> None:
    used, others, young = PrivateFolder(), place / "dc-ssh-others", place / "dc-ssh-young"
    others.mkdir()
    young.mkdir()
    for each in (used.path, others):
        make_old(each)
    (young / "ask.py").touch()
    again = PrivateFolder()
    assert set(place.iterdir()) == {used.path, others, young, again.path}
    used.close()
    again.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root may mount")
def test_where_no_program_may_run_another_place_is_taken(place: Path) -> None:
    program = (
        "from distconsole.ssh.openssh_login import PrivateFolder;"
        "folder = PrivateFolder(); print(folder.path); folder.close()"
    )
    mount = 'mount -t tmpfs -o noexec none "$0"; exec "$@"'
    words = ["unshare", "--mount", "sh", "-c", mount, place, sys.executable, "-c", program]
    environment = {**os.environ, "TMPDIR": "/var/tmp"}
    done = run_to_end(words, check=True, env=environment)
    assert Path(done.stdout.strip()).parent == Path("/var/tmp")


def test_the_program_that_asks_runs_whatever_its_folder_is_called(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd := place / 'it\'s 100% "odd"').mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(odd))
    folder = PrivateFolder()
    done = subprocess.run([folder.askpass], capture_output=True, check=False, timeout=30, env={})
    assert b"DISTCONSOLE_ASK" in done.stderr
    folder.close()
    shutil.rmtree(odd)
