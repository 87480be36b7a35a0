"""What Slurm's and munge's commands print, read; where there is no Slurm nothing is started."""

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


def test_without_slurm_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "SBIN", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probes.run("slurm", {}, 5.0) == {"present": False, "why": "no Slurm here"}


def test_only_a_server_of_configurations_makes_silent_commands_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_commands(tmp_path, monkeypatch, "")
    assert probes.run("slurm", {}, 5.0)["present"] is False
    # DNS may name a controller, which the commands ask then.
    assert (tmp_path / "asked").read_text() == "scontrol ping\n"
    monkeypatch.setenv("SLURM_CONF_SERVER", "ctl")
    found = probes.run("slurm", {}, 5.0)
    assert found["present"]
    error = "scontrol: fatal: Could not establish a configuration source"
    assert found["controller_error"] == error


PING, CONFIG = (
    "Slurmctld(primary) at ctl is UP",
    "AuthInfo  = (null)\nAuthType                = auth/slurm",
)


@pytest.mark.parametrize("server", ["", "ctl"])
def test_commands_that_fetch_their_configuration_are_a_cluster_and_need_tell_no_version(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF_SERVER", server)
    put_commands(tmp_path, monkeypatch, PING)
    found = probes.run("slurm", {}, 5.0)
    assert (found["present"], found["version"]) == (True, "")
    assert found["controllers"] == [{"role": "primary", "host": "ctl", "up": True}]


@pytest.mark.parametrize(
    ("config", "file", "auth", "error"),
    [
        (CONFIG, "", "auth/slurm", ""),
        ("", "ClusterName=c\n authtype = auth/slurm\n", "auth/slurm", ""),
        ("", "# AuthType=auth/slurm\n", "", "no socket"),
        (CONFIG.replace("auth/slurm", "auth/munge"), "", "auth/munge", "no socket"),
    ],
)
def test_munge_is_at_fault_only_where_slurm_asks_it(
    config: str, file: str, auth: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_commands(tmp_path, monkeypatch, PING, config)
    (tmp_path / "munge").write_text("#!/bin/sh\necho 'munge: Error: no socket' >&2; exit 6\n")
    (tmp_path / "munge").chmod(0o755)
    (tmp_path / "slurm.conf").write_text(file)
    found = probes.run("slurm", {}, 5.0)
    assert (found["auth"], found["munge_error"]) == (auth, error)


def put_commands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ping: str, config: str = ""
) -> None:
    """Have a scontrol on the PATH that answers thus, and complains like that of 24.11 of all else."""
    answers = {"ping": ping, "show config": config}
    for asked, told in answers.items():
        (folder / asked).write_text(told)
    (folder / "scontrol").write_text(f"""#!/bin/sh
echo "scontrol $*" >>{folder}/asked
[ ! -s "{folder}/$*" ] || exec cat "{folder}/$*"
echo 'scontrol: error: fetch_config: DNS SRV lookup failed' >&2
echo 'scontrol: fatal: Could not establish a configuration source' >&2
exit 1
""")
    (folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin:/bin")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm, "CONFIGURATIONS", (str(folder / "slurm.conf"),))
