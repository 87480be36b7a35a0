"""Ranks to GPUs, by process and by CUDA_VISIBLE_DEVICES, and who a process is, over made-up /proc trees."""

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from distconsole_agent.system.procfs import printable
from distconsole_agent.telemetry.mapping import (
    MAX_COMMAND,
    UNKNOWN,
    GpuUnit,
    ProcessTable,
    RunningRank,
    ranks_by_unit,
    visible_devices,
    visible_units,
)

H100 = "NVIDIA H100"
HOST = 4026531836
"""The first pid namespace."""

GPUS = tuple(
    GpuUnit(key=f"GPU-{index}aaa-{index}", index=index, uuid=f"GPU-{index}aaa-{index}", model=H100)
    for index in range(4)
)
MIXED = (*GPUS[:2], GpuUnit("GPU-l4", 2, "GPU-l4", "NVIDIA L4"))


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({}, None),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "1"),
        ({"ROCR_VISIBLE_DEVICES": "2"}, "2"),
        ({"CUDA_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "3"}, "3"),
        ({"HIP_VISIBLE_DEVICES": ""}, ""),
        ({"ROCR_VISIBLE_DEVICES": "6,7", "HIP_VISIBLE_DEVICES": "1,0"}, "7,6"),
        ({"ROCR_VISIBLE_DEVICES": "4, 5,6", "CUDA_VISIBLE_DEVICES": "2"}, "6"),
        ({"ROCR_VISIBLE_DEVICES": "0,GPU-1aaa", "HIP_VISIBLE_DEVICES": "1"}, "GPU-1aaa"),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, UNKNOWN),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "GPU-1aaa"}, UNKNOWN),
        ({"CUDA_VISIBLE_DEVICES": "0", "GPU_DEVICE_ORDINAL": "1"}, UNKNOWN),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "2"}, "2"),
    ],
)
def test_rocm_nests_lists(variables: dict[str, str], chosen: str | None, tmp_path: Path) -> None:
    (tmp_path / "kfd").touch()
    assert visible_devices(variables, str(tmp_path)) == chosen
    assert visible_units(GPUS, UNKNOWN) == []


SLURMS = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"), "2")  # fmt: skip


def test_cuda_reads_its_own_variable_alone(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert visible_devices(SLURMS, str(tmp_path)) == "2"
    assert visible_devices({"HIP_VISIBLE_DEVICES": "1"}, str(tmp_path)) is None


def test_on_a_host_with_gpus_of_both_kinds_two_variables_say_nothing(tmp_path: Path) -> None:
    for kind in ("nvidiactl", "kfd"):
        (tmp_path / kind).touch()
    assert visible_devices(SLURMS, str(tmp_path)) == UNKNOWN
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "1"}, str(tmp_path)) == "1"


def instance(gpu: int, at: int) -> GpuUnit:
    name = f"MIG-{gpu}{at}-dead"
    return GpuUnit(name, gpu, name, H100, mig="3g.40gb", gpu_uuid=GPUS[gpu].uuid)


WITH_MIG = (instance(0, 1), instance(0, 2), GPUS[1])


def rank(number: int, local_rank: int, visible: str | None) -> RunningRank:
    return RunningRank(number, local_rank, 100 + number, visible)


@pytest.mark.parametrize(
    ("written", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 3 , 1 ", [3, 1]),
        ("1gpu2,2ampere", [1, 2]),
        ("0,-1,2", [0]),
        ("0,9,2", [0]),
        ("NoDevFiles", []),
        ("1,1", []),
        ("GPU-2aaa-2", [2]),
        ("GPU-3,GPU-0aaa", [3, 0]),
        ("GPU-", []),
        ("GPU-zzz,GPU-0", []),
    ],
)
def test_visible_devices_are_read_as_cuda_does(written: str | None, indices: list[int]) -> None:
    assert [unit.index for unit in visible_units(GPUS, written)] == indices


def test_only_identifiers_mean_something_where_cuda_may_sort_unlike_gpus() -> None:
    assert visible_units(MIXED, "0,1") == visible_units(MIXED, None) == []
    assert visible_units(MIXED, "GPU-l4") == [MIXED[2]]


def test_a_mig_instance_has_a_name_and_the_first_of_a_gpu_also_its_number() -> None:
    for written, units in (
        ("MIG-02-dead", [WITH_MIG[1]]),
        ("MIG-02", [WITH_MIG[1]]),
        ("MIG-0", []),  # fits two of them
        ("0,1", [WITH_MIG[0], GPUS[1]]),
        (GPUS[0].uuid, [WITH_MIG[0]]),
    ):
        assert visible_units(WITH_MIG, written) == units


@pytest.mark.parametrize(
    ("ranks", "holders", "expected"),
    [
        pytest.param([(4, 0, None), (5, 1, None)], {}, {0: 4, 1: 5}, id="by local rank"),
        pytest.param([(0, 0, "3"), (1, 1, "GPU-1aaa")], {}, {3: 0, 1: 1}, id="sees one alone"),
        pytest.param(
            [(0, 0, "2,3"), (1, 1, "2,3"), (2, 2, "2,3")], {}, {2: 0, 3: 1}, id="a shared list"
        ),
        pytest.param(
            [(0, 0, None), (1, 1, None)],
            {3: [0]},
            {3: 0, 1: 1},
            id="a process outweighs variables",
        ),
        pytest.param(
            [(0, 0, None)], {0: [0], 1: [0], 2: []}, {0: 0, 1: 0}, id="one rank on several"
        ),
        pytest.param([(1, 1, "0"), (0, 0, "0")], {}, {0: 0}, id="of several the lowest"),
        pytest.param(
            [(1, 1, "0"), (0, 0, "0")], {0: [1, 0]}, {0: 0}, id="of several processes the lowest"
        ),
        pytest.param([(0, 7, None), (1, 0, "")], {}, {}, id="beyond what is visible"),
    ],
)
def test_ranks_are_put_on_gpus_by_their_processes_and_else_by_what_they_see(
    ranks: list[tuple[int, int, str | None]],
    holders: dict[int, list[int]],
    expected: dict[int, int],
) -> None:
    held = {GPUS[gpu].key: pids for gpu, pids in holders.items()}
    found = ranks_by_unit(GPUS, [rank(*each) for each in ranks], held)
    assert found == {GPUS[gpu].key: number for gpu, number in expected.items()}


def process(proc: Path, pid: int, parent: int, name: str = "python", command: str = "") -> Path:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({name}) S {parent} {' 1' * 20}\n")
    (folder / "cmdline").write_text(command)
    return folder


def in_namespace(proc: Path, number: int) -> None:
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to(f"pid:[{number}]")


def test_a_process_is_described_by_its_owner_and_command(tmp_path: Path) -> None:
    in_namespace(tmp_path, HOST)  # whatever namespace the tests run in
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    facts = ProcessTable(str(tmp_path)).look_up(os.getpid(), None)
    ended = ProcessTable(str(tmp_path / "none")).look_up(4, None)
    assert facts.user == pwd.getpwuid(os.getuid()).pw_name
    assert "python" in facts.command or "pytest" in facts.command
    assert (ended.user, ended.command) == (None, None)


@pytest.mark.parametrize(
    ("name", "command", "shown"),
    [
        ("kworker/0:1", "", "kworker/0:1"),
        (
            "python",
            "python\0train\x1b]0;owned\x07.py\0\u202e--lr\0\x9b31m\n",
            "python train ]0;owned .py --lr 31m",
        ),
        (
            "python",
            "python\0x.py\0--password\0correct horse battery\0--lr\x001\0",
            "python x.py --password *** --lr 1",
        ),
    ],
    ids=["a kernel thread", "escapes", "a secret of several words"],
)
def test_a_command_is_shown_without_escapes_and_secrets(
    tmp_path: Path, name: str, command: str, shown: str
) -> None:
    in_namespace(tmp_path, HOST)
    process(tmp_path, 5, 2, name, command)
    assert ProcessTable(str(tmp_path)).look_up(5, None).command == shown


def test_a_command_is_bounded() -> None:
    assert len(printable(b"x" * 10_000, MAX_COMMAND)) == MAX_COMMAND


def test_the_lineage_of_a_process_begins_with_itself_and_its_parent() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        assert ProcessTable().lineage(child.pid)[:2] == (child.pid, os.getpid())
        assert child.pid not in ProcessTable().lineage(os.getpid())
    finally:
        child.communicate(b"\n", timeout=10)


def test_a_name_with_parentheses_hides_no_parent_and_loops_end(tmp_path: Path) -> None:
    for pid, parent in ((7, 3), (3, 1), (8, 9), (9, 8)):
        process(tmp_path, pid, parent, name="a) S 99 (b")
    lineage = ProcessTable(str(tmp_path)).lineage
    assert (lineage(7), lineage(8)) == ((7, 3), (8, 9))


def test_on_the_host_a_pid_is_the_drivers_pid(tmp_path: Path) -> None:
    in_namespace(tmp_path, HOST)
    process(tmp_path, 7, 1)
    table = ProcessTable(str(tmp_path))
    assert table.look_up(7, None).lineage == (7,)
    assert table.look_up(8, None).lineage == ()


def test_in_a_container_a_pid_is_believed_only_with_a_gpu_open(tmp_path: Path) -> None:
    in_namespace(tmp_path, 4026532999)
    process(tmp_path, 7, 1)
    (process(tmp_path, 8, 1) / "fd" / "9").symlink_to("/dev/nvidia0")
    table = ProcessTable(str(tmp_path))
    assert not table.is_same(7)
    assert table.is_same(8)
    assert not table.is_same(99)
