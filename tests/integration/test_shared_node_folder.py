"""Hosts that share /tmp, as containers with the machine's do: each has its agents and its runs."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from distconsole.model.events import RunListed
from distconsole.model.requests import Runs, Where
from distconsole.runs.summary import RunSummary
from distconsole.session import open_session
from suite.console import Console
from suite.driving import answered
from testbed import Testbed

pytestmark = [pytest.mark.testbed, pytest.mark.usefixtures("consoles")]

SCRIPT = """
import os, socket, sys, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
end = time.monotonic() + 60
while time.monotonic() < end and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
"""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


@pytest.fixture
def done(bed: Testbed, tmp_path: Path) -> Iterator[Path]:
    """Have hosts that share what they can: node folder, shared memory, name and kernel.

    Returns:
        A file that ends the job once it is there.
    """
    places = {tmp_path / "node": f"/tmp/distconsole-{os.getuid()}", tmp_path / "shm": "/dev/shm"}
    for folder, place in places.items():
        folder.mkdir(mode=0o700)
        for host in bed.hosts:
            host.exec(["mkdir", "-p", place], cwd="/")
            host.exec(["mount", "--bind", str(folder), place], cwd="/")
    for host in bed.hosts:
        host.exec(["umount", BOOT_ID], cwd="/")
        host.exec(["hostname", "vm"], cwd="/")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.py").write_text(SCRIPT)
    yield tmp_path / "done"
    for host in bed.hosts:
        for place in places.values():
            host.exec(["umount", "-l", place], cwd="/")


def list_runs(bed: Testbed, hosts: str) -> list[RunSummary]:
    """Return the runs that another session finds on hosts."""
    where = Where(ssh_config=str(bed.ssh_config), hosts=hosts)
    return [event.summary for event in answered(Runs(where=where), open_session).of(RunListed)]


@pytest.mark.parametrize(
    "sync", [pytest.param((), marks=pytest.mark.campaign), ("--sync",)], ids=["there", "brought"]
)
def test_hosts_that_share_tmp_run_together(
    bed: Testbed, done: Path, tmp_path: Path, sync: tuple[str, ...]
) -> None:
    script = str(tmp_path / "job" / "job.py")
    words = ("run", "--json", *sync, "--launcher", "torch", script, str(done))
    with Console(bed, tmp_path, *words) as console:
        for rank in (0, 1):
            console.see(event="log", line=f"rank {rank} of 2", rank=rank)
        # Another session, while both agents live, and one after they were killed.
        for name in bed.host_names:
            assert [told.hosts for told in list_runs(bed, name)] == [(name,)]
            bed.ssh(name, "pkill -KILL -f '[p]yz agent'")
        (told,) = list_runs(bed, bed.names)
        assert (told.state, sorted(told.hosts)) == ("running", list(bed.host_names))
        done.touch()
        assert console.wait() == 0
        assert [event["state"] for event in console.of("end")] == ["succeeded"]
        assert {rank: console.lines(rank) for rank in (0, 1)} == {
            rank: [f"rank {rank} of 2"] for rank in (0, 1)
        }


def test_a_host_leaves_the_run_of_another_alone(bed: Testbed, done: Path, tmp_path: Path) -> None:
    first, other = bed.host_names
    script = str(tmp_path / "job" / "job.py")
    words = ("run", "--json", "--launcher", "torch", script, str(done))
    with Console(bed, tmp_path, *words, hosts=first) as console:
        console.see(event="log", line="rank 0 of 1")
        assert list_runs(bed, other) == []
        done.touch()
        assert console.wait() == 0
