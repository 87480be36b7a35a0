"""Cures that ``check`` offers are tried on real hosts: it fails without, it works with, and nothing is left."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from suite.console import perform
from suite.obstacles import mpirun_is
from testbed import Testbed
from testbed.host import Host
from testbed.injecting import lost_between

pytestmark = [pytest.mark.testbed, pytest.mark.torch_ranks]


@pytest.fixture
def bed(lean_bed: Testbed, cwd: Path) -> Testbed:
    """Two hosts, and an empty working folder, whose distconsole.toml counts."""
    return lean_bed


def checked(bed: Testbed, *words: str) -> dict[str, Any]:
    _, out, err = perform(bed, "check", "--json", *words)
    assert out, err
    report: dict[str, Any] = json.loads(out)
    return report


def the_finding(report: dict[str, Any], check: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in report["findings"] if each["check"] == check)
    return found


def assert_nothing_is_left(bed: Testbed) -> None:
    for host in bed.hosts:
        listening = host.exec(["ss", "-Htln"]).stdout.splitlines()
        assert {line.split()[3].rpartition(":")[2] for line in listening} <= {"22"}
        runs = host.exec(["sh", "-c", "ls /tmp/distconsole-*/runs /dev/shm/distconsole-*"])
        assert [line for line in runs.stdout.split() if not line.endswith(":")] == []
        words = [" ".join(each.argv) for each in host.processes()]
        assert not [line for line in words if "mpirun" in line or "dev/fd" in line]


SCRIPT = """
import os, torch, torch.distributed as dist
held = [os.open(os.devnull, os.O_RDONLY) for _ in range(600)]
dist.init_process_group("gloo")
ones = torch.ones(1 << 20)
dist.all_reduce(ones)
print("sum", int(ones.sum()), len(held), flush=True)
dist.destroy_process_group()
"""


def test_what_was_proven_is_written_and_run_works_by_it(bed: Testbed, tmp_path: Path) -> None:
    """A network that loses large packets, and too few files: ``run`` knows neither by itself.

    It is the first test of the file: an agent that is there has the limits it was started with.
    """
    (tmp_path / "job.py").write_text(SCRIPT)
    for host in bed.hosts:
        host.mtu_black_hole("mgmt")
    bed.hosts[1].bashrc("ulimit -S -n 400\n")
    only = ("--only", "net.mtu,lim.nofile")
    report = checked(bed, *only, "--write-profile")
    assert {found["check"]: found["proof"]["cured"] for found in report["findings"]} == {
        "lim.nofile": True,
        "net.mtu": True,
    }
    assert {
        (*line["table"], line["key"], line["value"]) for line in report["profile"]["written"]
    } == {
        ("hosts", "node1", "nic", "eth1"),
        ("hosts", "node2", "nic", "eth1"),
        ("hosts", "node2", "setup", "ulimit -n $(ulimit -Hn)"),
    }
    code, out, err = perform(bed, "run", "--no-sync", str(tmp_path / "job.py"))
    assert code == 0, out + err
    assert out.count(f"sum {2 << 20} 600") == 2
    again = checked(bed, *only, "--write-profile")
    assert again["ok"] is True
    assert "written" not in again["profile"] or not again["profile"]["written"]
    for host in bed.hosts:
        host.exec(["sh", "-c", "rm -r /tmp/distconsole-*/runs/job-*"])


def test_debians_hosts_line_fails_ranks_started_by_hand_and_the_variable_mends_it(
    bed: Testbed,
) -> None:
    for host in bed.hosts:
        host.wrong_etc_hosts()
    report = checked(bed, "--only", "os.hostname_bindable")
    assert [found["hosts"] for found in report["findings"]] == [["node1"], ["node2"]]
    for found in report["findings"]:
        proof = found["proof"]
        assert "Connection refused, remote=[127.0.1.1]" in proof["before"]
        assert proof["after"].startswith("exact sums at 2 ranks")
        assert proof["cured"] is True
        assert found["cure"]["hosts"][found["hosts"][0]]["env"] == {"GLOO_SOCKET_IFNAME": "eth0"}
        assert "by itself" in found["hint"]
    assert_nothing_is_left(bed)


def test_a_way_that_loses_everything_is_proven_by_a_connection_and_ranks_elsewhere(
    bed: Testbed,
) -> None:
    one, two = bed.hosts
    with lost_between(one, two, networks=("mgmt",)):
        report = checked(bed, "--only", "net.reach_tcp,net.other_networks", "--prove")
    (found,) = report["findings"]
    assert (found["check"], found["hosts"]) == ("net.reach_tcp", ["node1", "node2"])
    assert found["proof"]["before"].startswith(f"node1 -> {two.address} port ")
    assert found["proof"]["before"].endswith(": timeout")
    assert found["proof"]["after"].startswith("exact sums at 2 ranks")
    assert "distconsole run --nic eth1 ..." in found["hint"]
    assert 'at the top of distconsole.toml: nic = "eth1"' in found["hint"]
    assert_nothing_is_left(bed)


@pytest.mark.mpi
def test_docker0_breaks_an_mpirun_typed_by_hand_as_foretold_and_the_network_mends_it(
    bed: Testbed,
) -> None:
    for host in bed.hosts:
        host.add_docker_bridge()
    report = checked(bed, "--only", "net.iface_matrix,net.choices")
    found = the_finding(report, "net.iface_matrix")
    # Open MPI 4 hangs; 5.0 does, or has a rank abort with MPI_ERR_UNKNOWN.
    before = found["proof"]["before"]
    assert "hang" in before or (": exit code 14 after" in before and not mpirun_is("4.1"))
    assert found["proof"]["cured"] is True
    network = bed.hosts[0].address.rpartition(".")[0] + ".0/24"
    assert found["cure"]["mca"]["btl_tcp_if_include"] == network
    foretold = [each for each in report["choices"] if each["engine"] == "Open MPI"]
    assert {each["interface"] for each in foretold if each["meets"] is False} == {"docker0"}
    by_run = {(each["meets"], each["how"]) for each in foretold if each["start"] == "run"}
    assert by_run == {(True, f"btl_tcp_if_include={network}")}
    assert_nothing_is_left(bed)


# The rule is tried in test_check_collectives, and the proof by ranks without and with this variable above.
@pytest.mark.campaign
def test_nccls_grammar_in_gloos_variable_fails_and_the_interface_mends_it(bed: Testbed) -> None:
    bed.reset()  # an agent that is there has the variables it was started with
    bed.hosts[1].set_environment({"GLOO_SOCKET_IFNAME": "^lo,docker0"})
    found = the_finding(checked(bed, "--only", "env.syntax"), "env.syntax")
    assert "Unable to find address for: ^lo" in found["proof"]["before"]
    assert found["proof"]["cured"] is True
    assert_nothing_is_left(bed)


@contextmanager
def held(host: Host, port: int) -> Iterator[None]:
    """A leftover that listens."""
    code = f"import socket,time;s=socket.socket();s.bind(('',{port}));s.listen();print();time.sleep(99)"
    with host.popen([sys.executable, "-uc", code], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        yield
        process.kill()


def test_a_port_that_is_held_is_proven_by_binding_it_and_the_one_that_is_named(
    bed: Testbed,
) -> None:
    with held(bed.hosts[0], 29500):
        report = checked(bed, "--only", "port", "--level", "quick", "--prove")
    found = the_finding(report, "port.master_free")
    assert found["proof"]["before"] == "port 29500: in use"
    assert found["proof"]["after"] == f"port {found['cure']['port']}: free"
    assert found["cure"]["port"] != 29500
