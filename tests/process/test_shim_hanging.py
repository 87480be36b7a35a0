"""A process whose memory the kernel does not give to anybody who asks: who looks for a run's processes must not wait for it.

A FIFO that nobody writes to stands in for its environment, in a mount namespace of the test's own.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.shims import RunUnderTest, script
from suite.programs import run_to_end

UNSHARE = ["unshare", "--mount", "--propagation", "private"]


def cannot_mount() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return True
    return (
        subprocess.run([*UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"], check=False).returncode
        != 0
    )


pytestmark = pytest.mark.skipif(
    cannot_mount(), reason="needs root, and a mount namespace (unshare of util-linux)"
)


@pytest.fixture
def python(tmp_path: Path) -> Iterator[str]:
    """A Python in whose world one process, of no run, cannot be looked into."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = subprocess.Popen(["sleep", "600"])
    wrapper = tmp_path / "python"
    mounts = "".join(
        f"mount --bind {fifo} /proc/{process.pid}/{name}\n" for name in ("environ", "cmdline")
    )
    inner = script(tmp_path, f'{mounts}exec {sys.executable} "$@"\n', "inner.sh")
    wrapper.write_text(f'#!/bin/sh\nexec {" ".join(UNSHARE)} sh {inner} "$@"\n')
    wrapper.chmod(0o755)
    yield str(wrapper)
    process.kill()
    process.wait()


def test_a_shim_ends_its_run_though_a_process_is_unreadable(tmp_path: Path, python: str) -> None:
    with RunUnderTest(tmp_path, ["sh", "-c", "sleep 600 & exit 3"], python=python) as run:
        assert run.complete()["exit_code"] == 3


LOOK = """
import os, sys
from distconsole_agent.supervisor import proctree
print(list(proctree.pids_of_run(sys.argv[1])))
print(len(proctree.pids_of_run(sys.argv[1], doubtful=True)))
"""


def test_a_process_that_is_unreadable_may_be_of_any_run(tmp_path: Path, python: str) -> None:
    env = {**os.environ, "DISTCONSOLE_RUN_DIR": "/marked"}
    with subprocess.Popen(["sleep", "600"], env=env) as marked:
        told = run_to_end([python, "-c", LOOK, "/marked"], check=True)
        marked.kill()
    assert told.stdout.split("\n")[:2] == [f"[{marked.pid}]", "2"]
