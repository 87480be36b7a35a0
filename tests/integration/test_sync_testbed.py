"""``--sync`` and ``--no-sync`` by the command line on hosts that share no folder with this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from testbed import Testbed

pytestmark = pytest.mark.testbed

SCRIPT = """
import os, pathlib, sys
from helper.words import WORD
print(WORD, pathlib.Path("conf.txt").read_text(), *sys.argv[1:], flush=True)
open("written.txt", "w").write(os.environ["RANK"])
"""


class Console:
    """The command line, started in one folder."""

    def __init__(self, bed: Testbed, folder: Path, data: Path) -> None:
        self._bed = bed
        self._folder = folder
        self._environment = {**os.environ, "XDG_DATA_HOME": str(data)}

    def __call__(self, verb: str, hosts: str, *words: str) -> subprocess.CompletedProcess[str]:
        where = ["--ssh-config", str(self._bed.ssh_config), *(["--hosts", hosts] if hosts else [])]
        return subprocess.run(
            [sys.executable, "-m", "distconsole", verb, *where, *words],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )

    def events(self, verb: str, hosts: str, *words: str) -> list[dict[str, Any]]:
        done = self(verb, hosts, "--json", *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def lines_by_host(events: list[dict[str, Any]]) -> dict[str, str]:
    return {event["host"]: event["line"] for event in events if event["event"] == "log"}


def test_every_host_runs_the_code_that_was_here_when_the_run_began(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    one, two = standing_bed.host_names
    project = tmp_path / "project"
    (project / "helper").mkdir(parents=True)
    (project / "helper" / "words.py").write_text("WORD = 'first'\n")
    (project / "train.py").write_text(SCRIPT)
    (project / "conf.txt").write_text("conf")
    (project / "data.bin").write_bytes(b"0" * 100_000)
    (project / ".gitignore").write_text("*.bin\n")
    console = Console(standing_bed, project, tmp_path / "data")

    events = console.events("run", f"{one},{two}", "--sync", "train.py", "word")
    assert lines_by_host(events) == dict.fromkeys((one, two), "first conf word")
    run = events[0]["run"]
    code = f"/tmp/distconsole-{os.getuid()}/runs/{run}/code"
    listed = standing_bed.ssh(
        two, f"cd {code} && find . -type f | grep -v pycache | sort"
    ).stdout.split()
    assert listed == ["./.gitignore", "./conf.txt", "./helper/words.py", "./train.py", "./written.txt"]  # fmt: skip
    assert standing_bed.ssh(two, f"cat {code}/written.txt").stdout == "1"
    assert not (project / "written.txt").exists()

    (project / "helper" / "words.py").write_text("WORD = 'second'\n")
    done = console("run", f"{one},{two}", "--sync", "--json", "train.py", "x")
    assert "2 new (32 B)" in done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines_by_host(events) == dict.fromkeys((one, two), "second conf x")
    second = events[0]["run"]

    events = console.events("rerun", two, run)
    assert lines_by_host(events) == {two: "first conf word"}
    events = console.events("rerun", "", "--exclude", one, second)
    assert lines_by_host(events) == {two: "second conf x"}


def test_a_script_that_one_host_lacks_is_one_error_before_anything_starts(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    one, two = standing_bed.host_names
    # /tmp of each host is its own.
    there = Path(f"/tmp/only-{os.getpid()}")
    standing_bed.ssh(one, f"mkdir {there} && echo 'print(1)' >{there}/train.py")
    there.mkdir()
    try:
        console = Console(standing_bed, there, tmp_path / "data")
        done = console("run", f"{one},{two}", "--no-sync", "train.py")
        assert done.returncode == 2
        assert f"error: the script {there}/train.py does not exist on {two}\n" in done.stderr
        assert "hint: it is not on this machine, either; --workdir" in done.stderr
        assert done.stdout == ""
        listed = console("runs", f"{one},{two}", "--json")
        assert str(there) not in listed.stdout
    finally:
        there.rmdir()
