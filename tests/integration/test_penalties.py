"""Nothing that the program does earns a penalty of OpenSSH 9.8 and newer: the logs of every host's sshd say so."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.sshd import SSHD_VERSION, wait_until
from suite.console import Console
from suite.programs import run_to_end
from testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.usefixtures("consoles"),
    pytest.mark.skipif(
        SSHD_VERSION < (9, 8),
        reason=f"sshd is {'.'.join(map(str, SSHD_VERSION))}; PerSourcePenalties are of 9.8 and newer",
    ),
]
PENALTY = re.compile(r"(?:new|activating) .* penalty of .*|drop connection .*")
"""What sshd notes with VERBOSE of a penalty that begins, or is in force."""


@pytest.fixture(scope="module")
def open_bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Testbed]:
    """Two hosts that reach each other by ssh."""
    tmp_path_factory.getbasetemp()  # made before the hosts, so that they see it
    with Testbed(hosts=2, node_ssh=True) as bed:
        wait_until(lambda: all(map(PENALTY.search, logs(bed))))  # of the looks whether they are up
        yield bed


def logs(bed: Testbed) -> list[str]:
    return [(host.files / "sshd.log").read_text() for host in bed.hosts]


def penalties_since(bed: Testbed, before: list[str]) -> list[str]:
    parts = [now[len(then) :] for now, then in zip(logs(bed), before, strict=True)]
    assert all("Accepted publickey" in part for part in parts), "nothing was noted"
    return [line for part in parts for line in PENALTY.findall(part)]


def test_a_check_with_mpirun_over_ssh_and_a_run_earn_none(
    open_bed: Testbed, tmp_path: Path
) -> None:
    before = logs(open_bed)
    words = ("check", "--json", "--level", "standard")
    with Console(open_bed, tmp_path, *words) as console:
        assert console.wait() in (0, 1)
        cells = console.events[-1]["cells"]["node1"]
    assert (cells["ssh.between"], cells["mpi.ssh"]) == ("pass", "pass")
    script = tmp_path / "job.py"
    script.write_text("import os\nprint(os.environ['RANK'])\n")
    with Console(open_bed, tmp_path, "run", "--json", str(script)) as console:
        assert console.wait() == 0
    assert penalties_since(open_bed, before) == []


def test_init_and_its_check_earn_none(
    open_bed: Testbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logs(open_bed)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    where = ["--ssh-config", str(open_bed.ssh_config), "--hosts", open_bed.names]
    words = [sys.executable, "-m", "distconsole", "init", *where, "--yes"]
    ended = run_to_end(words, cwd=tmp_path)
    assert "written: " in ended.stderr + ended.stdout
    assert penalties_since(open_bed, before) == []


def test_checks_of_hosts_that_refuse_each_other_s_key_bring_none_in_force(
    open_bed: Testbed, tmp_path: Path
) -> None:
    for name in open_bed.host_names:
        open_bed.ssh(
            name,
            "cd ~/.ssh && mv id_ed25519 put_away && ssh-keygen -q -t ed25519 -N '' -f id_ed25519",
        )
    before = logs(open_bed)
    try:
        for _ in range(6):
            words = ("check", "--json", "--only", "ssh.between")
            with Console(open_bed, tmp_path, *words) as console:
                assert console.wait() in (0, 1)
                facts = console.events[-1]["hosts"]["node1"]["facts"]["between"]
            assert [login["error"] for login in facts["logins"]] == ["auth"]
    finally:
        for name in open_bed.host_names:
            open_bed.ssh(name, "cd ~/.ssh && mv put_away id_ed25519 && rm id_ed25519.pub")
    found = penalties_since(open_bed, before)
    assert {line.split(" penalty of ")[0].split()[-1] for line in found} == {"deferred"}
    assert "5 seconds for penalty: failed authentication" in found[0]
