"""``check`` on real hosts whose GPUs are stand-ins: real SSH, agents and pynvml, and copies by ctypes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from fakes import nvml
from fakes.shims import wait_until
from testbed import Testbed

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.skipif(nvml.compiler() is None, reason="no C compiler for the stand-ins"),
]

GPUS = 2


@pytest.fixture
def machines(bed: Testbed, tmp_path: Path) -> Iterator[list[nvml.FakeNvml]]:
    """Two idle GPUs, joined by NVLink, on each host."""
    shutil.copytree(nvml.build(), tmp_path / "libraries")  # where the hosts see it
    with ExitStack() as stack:
        found = []
        for number, host in enumerate(bed.hosts):
            made = stack.enter_context(closing(nvml.FakeNvml(tmp_path / f"{host.name}.control")))
            libraries = {"LD_LIBRARY_PATH": str(tmp_path / "libraries")}
            host.set_environment({**made.environment(), **libraries})
            made.set_machine(number)
            made.set_gpu_count(GPUS)
            for gpu in range(GPUS):
                made.set_idle(gpu)
                made.set(gpu, "GPU_LINKS", 4)
            found.append(made)
        yield found


def command(bed: Testbed, *words: str) -> list[str]:
    where = ("--ssh-config", str(bed.ssh_config), "--hosts", bed.names)
    return [
        sys.executable,
        "-m",
        "distconsole",
        "check",
        "--json",
        "--only",
        "gpu",
        *where,
        *words,
    ]


def surroundings(folder: Path) -> dict[str, Any]:
    return {"cwd": folder, "env": {**os.environ, "XDG_DATA_HOME": str(folder / "data")}}


def checked(bed: Testbed, folder: Path, *words: str) -> dict[str, Any]:
    done = subprocess.run(
        command(bed, *words),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        **surroundings(folder),
    )
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def is_probe(argv: Sequence[str]) -> bool:
    """Whether it runs a script that lies in memory only."""
    return any(word.startswith("/dev/fd/") for word in argv)


def copies(machines: list[nvml.FakeNvml]) -> list[int]:
    return [made.word(gpu, "GPU_COPIES") for made in machines for gpu in range(GPUS)]


def test_links_that_fail_only_at_work_are_found_and_gpus_in_use_are_left_alone(
    bed: Testbed, machines: list[nvml.FakeNvml], tmp_path: Path
) -> None:
    """At rest every one of these GPUs looks the same."""
    first, second = machines
    quick = checked(bed, tmp_path, "--level", "quick")
    assert (quick["ok"], quick["findings"]) == (True, [])
    assert copies(machines) == [0, 0, 0, 0]
    assert quick["cells"]["node1"]["gpu.pcie_load"] == "skipped"

    healthy = checked(bed, tmp_path)
    assert (healthy["ok"], healthy["findings"]) == (True, [])
    assert healthy["cells"]["node1"]["gpu.nvlink_load"] == "pass"
    assert all(copies(machines))

    before = copies(machines)
    user = bed.hosts[0].exec(["sh", "-c", "echo $$"]).stdout.strip()
    first.set_processes(0, [(int(user), 100 << 20, 0, 0)])
    second.set_link_errors(0, replays=1)
    second.set(1, "GPU_PCIE_GENERATION", 1)
    second.set(1, "GPU_COPY_MB_S", 3000)
    report = checked(bed, tmp_path)
    found = [(each["check"], each["severity"], each["hosts"]) for each in report["findings"]]
    assert sorted(found) == [
        ("gpu.nvlink_load", "fail", ["node2"]),
        ("gpu.pcie_load", "fail", ["node2"]),
        ("gpu.pcie_load", "info", ["node1"]),
    ]
    words = {(each["check"], each["severity"]): each for each in report["findings"]}
    assert "generation 1 of 4, 3.0 GB/s" in words["gpu.pcie_load", "fail"]["seen"]
    assert f"in use by a process (pid {user})" in words["gpu.pcie_load", "info"]["summary"]
    assert copies(machines)[0] == before[0]
    assert report["cells"]["node1"]["gpu.nvlink_load"] == "skipped"  # no GPU left to copy to
    assert [made.word(gpu, "GPU_USER") for made in machines for gpu in range(GPUS)] == [0] * 4


def test_gpus_that_two_hosts_share_are_measured_once(
    bed: Testbed, machines: list[nvml.FakeNvml], tmp_path: Path
) -> None:
    machines[1].set_machine(0)
    report = checked(bed, tmp_path)
    assert report["cells"]["node1"]["gpu.pcie_load"] == "pass"
    assert report["why"]["node2"]["gpu.pcie_load"] == "they are the GPUs of node1"
    assert copies(machines)[GPUS:] == [0, 0]


def test_a_check_that_is_given_up_leaves_no_gpu_in_use(
    bed: Testbed, machines: list[nvml.FakeNvml], tmp_path: Path
) -> None:
    first = machines[0]
    first.set(1, "GPU_CUDA_HANGS", 1)
    with subprocess.Popen(
        command(bed), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **surroundings(tmp_path)
    ) as asking:
        copying = "the second GPU of the first host has its turn"
        wait_until(copying, lambda: first.calls("nvmlDeviceSetCpuAffinity") == GPUS)
        assert [each for host in bed.hosts for each in host.processes() if is_probe(each.argv)]
        asking.send_signal(signal.SIGINT)
        assert asking.wait(30) == 130, asking.stderr and asking.stderr.read()
    assert not [each for host in bed.hosts for each in host.processes() if is_probe(each.argv)]
