"""What a run needs while it lives stays where systemd-tmpfiles cleans /tmp (10 days on RHEL and Fedora)."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fakes.shims import StartedRun, script

CLEANER = shutil.which("systemd-tmpfiles")
LIVES = "import sys; open(sys.argv[1]).read()"

pytestmark = pytest.mark.skipif(CLEANER is None, reason="needs systemd-tmpfiles")


def clean(folder: Path) -> None:
    """Clean ``folder`` by the real program, as if all in it had been unused for 30 days."""
    long_ago = time.time() - 30 * 86400
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    rule = folder.parent / "clean.conf"
    # No test can set a change time, at which the program looks by default, too.
    rule.write_text(f"e {folder} - - - am:10d\n")
    subprocess.run([str(CLEANER), "--clean", str(rule)], check=True)


def test_nothing_of_a_run_that_lives_is_cleaned(tmp_path: Path) -> None:
    folder = tmp_path / "tmp"
    folder.mkdir()
    end = tmp_path / "end"
    os.mkfifo(end)
    argv = [sys.executable, script(tmp_path, LIVES), str(end)]
    with StartedRun(folder, argv) as run:
        node, run_dir = folder / "node0", run.shims[0].run_dir
        needed = [
            node / "hook-0123" / "distconsole_training" / "loss.py",
            run_dir / "code" / "late" / "imported.py",
            run_dir / "spec.json",
        ]
        for path in needed[:2]:
            path.parent.mkdir(parents=True)
            path.touch()
        other = folder / "other"
        other.touch()
        clean(folder)
        assert [path for path in needed if not path.exists()] == []
        assert not other.exists(), "the cleaner cleans"
        end.write_text("")
        assert run.verdict()["state"] == "succeeded"
    clean(folder)
    assert not needed[0].exists()
