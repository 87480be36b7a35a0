"""``--sync`` and ``--no-sync`` by the command line on hosts that share no folder with this machine."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from suite.console import perform
from testbed import Testbed

pytestmark = pytest.mark.testbed

SCRIPT = """
import os, pathlib, sys
from helper.words import WORD
print(WORD, pathlib.Path("conf.txt").read_text(), *sys.argv[1:], flush=True)
open("written.txt", "w").write(os.environ["RANK"])
"""


def done(bed: Testbed, code: int, verb: str, hosts: str, *words: str) -> tuple[str, str]:
    """Do it in this process; return what it printed on stdout and stderr."""
    ended, out, err = perform(bed, verb, *words, hosts=hosts)
    assert ended == code, err
    return out, err


def events_of(bed: Testbed, verb: str, hosts: str, *words: str) -> list[dict[str, Any]]:
    out, _ = done(bed, 0, verb, hosts, "--json", *words)
    return [json.loads(line) for line in out.splitlines()]


def lines_by_host(events: list[dict[str, Any]]) -> dict[str, str]:
    return {event["host"]: event["line"] for event in events if event["event"] == "log"}


def test_every_host_runs_the_code_that_was_here_when_the_run_began(
    standing_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = standing_bed.host_names
    project = tmp_path / "project"
    (project / "helper").mkdir(parents=True)
    (project / "helper" / "words.py").write_text("WORD = 'first'\n")
    (project / "train.py").write_text(SCRIPT)
    (project / "conf.txt").write_text("conf")
    (project / "data.bin").write_bytes(b"0" * 100_000)
    (project / ".gitignore").write_text("*.bin\n")
    monkeypatch.chdir(project)

    events = events_of(standing_bed, "run", f"{one},{two}", "--sync", "train.py", "word")
    assert lines_by_host(events) == dict.fromkeys((one, two), "first conf word")
    first = events[0]["run"]
    code = f"/tmp/distconsole-{os.getuid()}/runs/{first}/code"
    listed = standing_bed.ssh(
        two, f"cd {code} && find . -type f | grep -v pycache | sort"
    ).stdout.split()
    assert listed == ["./.gitignore", "./conf.txt", "./helper/words.py", "./train.py", "./written.txt"]  # fmt: skip
    assert standing_bed.ssh(two, f"cat {code}/written.txt").stdout == "1"
    assert not (project / "written.txt").exists()

    (project / "helper" / "words.py").write_text("WORD = 'second'\n")
    out, err = done(standing_bed, 0, "run", f"{one},{two}", "--sync", "--json", "train.py", "x")
    assert "2 new (32 B)" in err
    events = [json.loads(line) for line in out.splitlines()]
    assert lines_by_host(events) == dict.fromkeys((one, two), "second conf x")
    second = events[0]["run"]

    events = events_of(standing_bed, "rerun", two, first)
    assert lines_by_host(events) == {two: "first conf word"}
    events = events_of(standing_bed, "rerun", "", "--exclude", one, second)
    assert lines_by_host(events) == {two: "second conf x"}


def test_a_script_that_one_host_lacks_is_one_error_before_anything_starts(
    standing_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = standing_bed.host_names
    # /tmp of each host is its own.
    there = Path(f"/tmp/only-{os.getpid()}")
    standing_bed.ssh(one, f"mkdir {there} && echo 'print(1)' >{there}/train.py")
    there.mkdir()
    try:
        monkeypatch.chdir(there)
        out, err = done(standing_bed, 2, "run", f"{one},{two}", "--no-sync", "train.py")
        assert f"error: the script {there}/train.py does not exist on {two}\n" in err
        assert "hint: it is not on this machine, either; --workdir" in err
        assert out == ""
        assert str(there) not in done(standing_bed, 0, "runs", f"{one},{two}", "--json")[0]
    finally:
        there.rmdir()
