"""What Slurm's and munge's commands print, read; where there is no Slurm nothing is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distconsole_agent import probes
from distconsole_agent.probes.host import slurm
from distconsole_agent.probes.programs import Ended

NODE = (
    "NodeName=n2 Arch=x86_64 CPUAlloc=0 CPUTot=4 Gres=gpu:2 OS=Linux 6.1 #1 SMP RealMemory=4000 "
    "State=IDLE+DRAIN ThreadsPerCore=1 BootTime=2026-11-21T19:12:53 "
    "Reason=Kill task failed [root@2026-11-21T23:16:56]"
)


def test_a_node_is_read_with_its_reason() -> None:
    node = slurm.parse_pairs(NODE)
    assert (node["NodeName"], node["CPUTot"], node["Gres"]) == ("n2", "4", "gpu:2")
    assert node["State"] == "IDLE+DRAIN"
    assert node["Reason"] == "Kill task failed [root@2026-11-21T23:16:56]"
    assert slurm.parse_pairs("NodeName=vm CPUs=2 RealMemory=24105\nUpTime=0-04:02:59")[
        "RealMemory"
    ] == ("24105")


def test_limits_are_those_of_the_kernels_own_list() -> None:
    text = Path("/proc/self/limits").read_text()
    found = slurm.parse_limits(text)
    assert set(found) == {"memlock", "nofile", "nproc"}
    assert slurm.parse_limits("Max locked memory   65536   unlimited   bytes") == {
        "memlock": 65536
    }


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(1, "", "unmunge: Error: Invalid credential\n", 0.1), "Invalid credential"),
        (Ended(1, "", "srun: error: Job 7 has expired\n", 0.1), "Job 7 has expired"),
        (Ended(None, "", "", 8.0), "no answer in 8 s"),
        (Ended(0, "", "", 0.0), ""),
    ],
)
def test_a_complaint_is_one_line_without_its_program(ended: Ended, words: str) -> None:
    assert slurm.complaint(ended) == words


def test_a_host_without_slurm_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "SBIN", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.run("slurm", {}, 5.0) == {"present": False, "why": "no Slurm here"}


def test_commands_without_a_configuration_are_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "scontrol"
    command.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm, "CONFIGURATIONS", (str(tmp_path / "slurm.conf"),))
    assert probes.run("slurm", {}, 5.0)["present"] is False
    assert not (tmp_path / "started").exists()
