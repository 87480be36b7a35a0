"""What a node's kernel files say of a kill, on each kind of host; whose processes are whose, by /proc."""

import os
import resource
import subprocess
import threading
from pathlib import Path

import pytest

from distconsole_agent.supervisor import killing
from distconsole_agent.supervisor.killing import Kills, count_kills, examine_kill
from distconsole_agent.supervisor.proctree import descendants, own_pids

GIB = 1 << 30


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders in place of /proc and /sys/fs/cgroup."""
    for name in ("proc/self", "sys/fs/cgroup"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.setattr(killing, "PROC", str(tmp_path / "proc"))
    monkeypatch.setattr(killing, "SYS", str(tmp_path / "sys"))
    return tmp_path


def host_killed(kernel: Path, count: int) -> None:
    (kernel / "proc/vmstat").write_text(f"oom_kill_disable 9\noom_kill {count}\n")


def second_version(kernel: Path, count: int) -> None:
    own = kernel / "sys/fs/cgroup/pod/rank"
    own.mkdir(parents=True, exist_ok=True)
    (kernel / "proc/self/cgroup").write_text("0::/pod/rank\n")
    (own / "memory.events").write_text(f"low 0\noom 7\noom_kill {count}\n")
    (own / "memory.max").write_text("max\n")
    (kernel / "sys/fs/cgroup/pod/memory.max").write_text(f"{4 * GIB}\n")


def test_a_kill_that_the_hosts_kernel_did_not_do(kernel: Path) -> None:
    host_killed(kernel, 5)
    before = count_kills()
    known = examine_kill(before, 3 * GIB)
    assert (before, known.for_memory) == (Kills(5, None), False)
    assert known.lines == (
        "the process held 3.0 GiB of memory at most",
        "processes that the kernel has killed for memory since the ranks started: 0 on this host",
    )


def test_a_kill_in_the_control_group(kernel: Path) -> None:
    host_killed(kernel, 5)
    second_version(kernel, 0)
    before = count_kills()
    second_version(kernel, 1)
    host_killed(kernel, 6)
    known = examine_kill(before, 0)
    assert known.for_memory is True
    counted, limit = known.lines
    assert counted.endswith("1 on this host, 1 in its control group")
    assert limit == "control group /pod may have 4.0 GiB"


def test_a_control_group_of_the_first_version(kernel: Path) -> None:
    own = kernel / "sys/fs/cgroup/memory/job"
    own.mkdir(parents=True)
    (kernel / "proc/self/cgroup").write_text("4:memory:/job\n1:cpu:/\n0::/\n")
    (own / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    (own / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (kernel / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    known = examine_kill(Kills(None, 1), 0)
    assert known.for_memory is True
    assert known.lines[-1] == "control group /job may have 2.0 GiB"


def test_what_is_not_to_be_seen_is_said(kernel: Path) -> None:
    assert count_kills() == Kills(None, None)
    known = examine_kill(count_kills(), 0)
    assert known.for_memory is None
    assert [line.partition(": ")[2] for line in known.lines] == ["not to be seen here"]


def test_a_descriptor_that_is_short_for_a_moment_hides_no_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    freed = threading.Timer(0.03, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard)))
    with subprocess.Popen(["sleep", "60"]) as child:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        freed.start()
        try:
            found, own = descendants(os.getpid()), own_pids()
        finally:
            freed.join()
            child.kill()
    assert child.pid in found
    assert child.pid in own
