"""What cannot be read, or holds another word, is no number and no text.
The memory limit above this process, over both versions of cgroups and inside containers.
"""

from pathlib import Path

import pytest

from distconsole_agent.system.cgroup import memory_group
from distconsole_agent.system.kernel_files import entries_of, first_line_of, number_of, text_of
from distconsole_agent.system.procfs import user_name


@pytest.mark.parametrize(
    ("said", "number"),
    [("7\n", 7), ("-1\n", -1), ("max\n", None), ("", None), ("-\n", None), ("--1", None), ("²", None)],
)  # fmt: skip
def test_a_number_is_a_whole_one_or_none(said: str, number: int | None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(said)
    assert number_of(tmp_path / "file") == number


def test_what_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert (text_of(gone), first_line_of(gone), number_of(gone)) == ("", None, None)
    assert entries_of(str(gone)) == []
    assert first_line_of(tmp_path) is None


def test_a_user_without_a_name_has_its_number() -> None:
    assert user_name(0) == "root"
    assert user_name(4_000_000_000) == "4000000000"


GIB = 2**30


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_lowest_limit_of_all_levels_holds(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/user.slice/user-7.slice/session.scope\n")
    mount = tmp_path / "sys/fs/cgroup"
    write(mount / "user.slice/memory.max", f"{64 * GIB}\n")
    write(mount / "user.slice/user-7.slice/memory.max", f"{8 * GIB}\n")
    write(mount / "user.slice/user-7.slice/memory.current", f"{5 * GIB}\n")
    write(
        mount / "user.slice/user-7.slice/memory.stat", f"anon 1\ninactive_file {2 * GIB}\nfile 3\n"
    )
    write(mount / "user.slice/user-7.slice/session.scope/memory.max", "max\n")
    group = memory_group(tmp_path / "proc", tmp_path / "sys")
    assert (group.limit_bytes, group.used_bytes()) == (8 * GIB, 3 * GIB)


def test_version_1_in_a_container_is_read_at_the_mount(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "11:cpu,cpuacct:/docker/ab\n4:memory:/docker/ab\n0::/\n")
    mount = tmp_path / "sys/fs/cgroup/memory"
    write(mount / "memory.limit_in_bytes", f"{2 * GIB}\n")
    write(mount / "memory.usage_in_bytes", f"{GIB}\n")
    write(mount / "memory.stat", "inactive_file 5\ntotal_inactive_file 1024\n")
    group = memory_group(tmp_path / "proc", tmp_path / "sys")
    assert (group.limit_bytes, group.used_bytes()) == (2 * GIB, GIB - 1024)


def test_without_a_limit_or_cgroups_there_is_no_group(tmp_path: Path) -> None:
    assert memory_group(tmp_path / "proc", tmp_path / "sys") is None
    write(tmp_path / "proc/self/cgroup", "4:memory:/\n0::/\n")
    write(tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "sys/fs/cgroup/memory.max", "max\n")
    assert memory_group(tmp_path / "proc", tmp_path / "sys") is None


def test_a_group_whose_usage_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/a\n")
    write(tmp_path / "sys/fs/cgroup/a/memory.max", "4096\n")
    group = memory_group(tmp_path / "proc", tmp_path / "sys")
    assert group.used_bytes() is None


def test_a_path_that_points_outside_the_mount_stays_inside(tmp_path: Path) -> None:
    write(tmp_path / "proc/self/cgroup", "0::/../../outside\n")
    write(tmp_path / "sys/fs/memory.max", "1\n")
    assert memory_group(tmp_path / "proc", tmp_path / "sys") is None
