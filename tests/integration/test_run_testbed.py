"""Runs on two hosts of the testbed, by the command line, while things break."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from suite.console import Console
from suite.driving import write_job
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles")]

MAX_PEAK_KIB = 130 * 1024
"""A third more than is needed; 400,000 lines that are kept would be 100 MB more."""

MEASURED = """
import re, sys
from pathlib import Path
from distconsole.__main__ import run
code = run(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""
"""Runs the program and says at its end how much memory it had at most, in KiB.

Not by ``ru_maxrss``, which a program inherits from the one that started it: here from pytest.
"""

COUNT = """
n = 0
while not os.path.exists({!r}):
    print(n, flush=True)
    n += 1
    time.sleep(0.02)
print("of", n)
"""
"""Counts until there is such a file."""


def test_agents_that_are_killed_while_ranks_start_anew_tell_everything(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    text = (
        "again = 'DISTCONSOLE_RESTART' in os.environ\n"
        "for n in range(150):\n    print(n + 150 * again, flush=True)\n    time.sleep(0.02)\n"
        # The other one is ended with it, and has said all by then.
        "time.sleep(rank)\nsys.exit(0 if again else rank * 5)"
    )
    words = ("run", "--json", "--max-restarts", "2", write_job(tmp_path, text))
    with Console(standing_bed, tmp_path, *words) as console:
        console.see(event="log", rank=1, line="120")
        for name in standing_bed.host_names:
            standing_bed.ssh(name, "pkill -KILL -f '[p]yz agent'")
        assert console.wait() == 0
        for rank in (0, 1):
            assert console.lines(rank) == [str(n) for n in range(300)]
        assert [event["restart"] for event in console.of("restart")] == [1]
        assert [f["check"] for f in console.of("finding")] == ["run.restart"]


def test_ranks_live_on_while_their_hosts_cannot_hear_each_other(
    standing_bed: Testbed, tmp_path: Path
) -> None:
    first, second = standing_bed.hosts[:2]
    go = tmp_path / "go"
    job = write_job(tmp_path, COUNT.format(str(go)))
    words = ("run", "--json", "--lost-after", "60", job)
    with Console(standing_bed, tmp_path, *words) as console:
        for rank in (0, 1):
            console.see(event="log", rank=rank, line="20")
        first.lose_what_goes_to(second)
        second.lose_what_goes_to(first)
        alone = console.see(event="finding", check="run.unsupervised", severity="warn")
        later = str(int(console.lines(0)[-1]) + 200)
        console.see(event="log", rank=0, line=later)
        console.see(event="log", rank=1, line=later)
        first.lose_nothing()
        second.lose_nothing()
        again = console.see(event="finding", check="run.unsupervised", severity="info")
        assert "the run goes on unsupervised there" in alone["summary"]
        assert "heard of again after" in again["summary"]
        go.touch()
        assert console.wait() == 0
        checks = {finding["check"] for finding in console.of("finding")}
        assert checks == {"run.unsupervised"}


@pytest.mark.parametrize("transport", ["paramiko", "openssh"])
def test_a_cut_network_loses_and_doubles_nothing(
    standing_bed: Testbed, tmp_path: Path, transport: str
) -> None:
    go = tmp_path / "go"
    job = write_job(tmp_path, COUNT.format(str(go)))
    words = ("run", "--transport", transport, "--json", job)
    with Console(standing_bed, tmp_path, *words) as console:
        console.see(event="log", rank=0, line="50")
        standing_bed.cut_console()
        console.see(event="link", connected=False)
        standing_bed.restore_console()
        console.see(event="link", connected=True)
        go.touch()
        assert console.wait() == 0
        for rank in (0, 1):
            *counted, last = console.lines(rank)
            assert counted == [str(n) for n in range(len(counted))]
            assert last == f"of {len(counted)}"


def test_400_000_lines_pass_through_bounded_memory(standing_bed: Testbed, tmp_path: Path) -> None:
    text = "for n in range(200_000): sys.stdout.write(f'{n} and some words to fill the line\\n')"
    words = ["run", "--ssh-config", str(standing_bed.ssh_config), "--hosts", standing_bed.names]
    words += ["--env", "PYTHONUNBUFFERED=", write_job(tmp_path, text)]
    with subprocess.Popen(
        [sys.executable, "-c", MEASURED, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        last: dict[int, int] = {}
        for line in process.stdout:
            # On a busy machine some may come faster than the console takes them: they are counted.
            matched = re.match(
                rb"\[(\d) node\d\] (?:(\d+) and|\[distconsole: ([\d,]+) lines )", line
            )
            assert matched is not None, line
            rank = int(matched[1])
            if matched[3]:
                last[rank] = last.get(rank, -1) + int(matched[3].replace(b",", b""))
            else:
                assert int(matched[2]) == last.get(rank, -1) + 1
                last[rank] = int(matched[2])
        assert process.wait(60) == 0
        peak_kib = int(process.stderr.read().split()[-1])
    assert last == {0: 199_999, 1: 199_999}
    assert peak_kib < MAX_PEAK_KIB
