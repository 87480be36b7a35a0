"""Claims about where ``init`` finds hosts: the machines that train, not those beside them."""

from pathlib import Path

import pytest

from distconsole.config.hostfile import host_text
from distconsole.config.ssh_names import ssh_machines
from distconsole.operations.init.init import find_candidates

SSH_CONFIG = """\
Host github.com
    User git
Host jump
    HostName jump.example.com
Host gpu1 gpu2
    ProxyJump me@jump:22
Host *
    ServerAliveInterval 30
"""


def test_hosts_come_of_the_allocation_the_host_file_ssh_config_and_sinfo(
    cwd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("SLURM_JOB_NODELIST_HET_GROUP_0", "n1")
    monkeypatch.setenv("SLURM_JOB_NODELIST_HET_GROUP_1", "n2")
    monkeypatch.setenv("PATH", str(cwd), prepend=":")
    (cwd / "hostfile").write_text("a slots=4\nb slots=4\n")
    (cwd / "config").write_text(SSH_CONFIG)
    sinfo = cwd / "sinfo"
    sinfo.write_text("#!/bin/sh\necho 'c[1-3]'\n")
    sinfo.chmod(0o755)
    candidates = find_candidates(cwd / "config")
    found = [(place, ",".join(map(host_text, hosts))) for hosts, place in candidates]
    assert found == [
        ("the Slurm allocation", "n1,n2"),
        ("./hostfile", "a:4,b:4"),
        (f"{cwd / 'config'}; jump is left out: it only leads to others", "gpu1,gpu2"),
        ("Slurm: sinfo", "c1,c2,c3"),
    ]


def test_an_empty_place_has_no_candidates(cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cwd))
    assert [hosts for hosts, _ in find_candidates(None) if hosts] == []


def test_names_in_quotes_are_names_as_ssh_reads_them(tmp_path: Path) -> None:
    (tmp_path / "more").write_text(
        'Host "gpu2" gpu3 # "no name"\n    ProxyCommand ssh -W %h:%p \'gate\'\n'
    )
    (tmp_path / "config").write_text(
        f"""Include "{tmp_path}/m*"
Host bastion 'gate' "gpu1"
Host "forge"
    User "git"
Host mirror
    HostName "github.com"
Host *
    ProxyJump "me@bastion:22"
"""
    )
    assert ssh_machines(tmp_path / "config") == (["gpu2", "gpu3", "gpu1"], ["bastion", "gate"])
