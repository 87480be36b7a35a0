"""``check SCRIPT`` on two real hosts: what would break that launch is found on the right host, and else nothing."""

import base64
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from distconsole.checks.engine.run import run_check
from distconsole.checks.engine.targeting import make_planner
from distconsole.checks.gather.short_run import short_run
from distconsole.grammar.verbs import parse_line
from distconsole.model.findings import Finding, Severity
from distconsole.model.reports import CheckReport
from distconsole.session import open_session
from suite.console import perform
from suite.obstacles import mpirun_is
from testbed import Testbed
from testbed.host import Host
from testbed.injecting import STUCK, held_port, stuck_folder

pytestmark = pytest.mark.testbed

JOB = "/tmp/job"
TRAIN = """\
import torch.distributed as dist
import model

dist.init_process_group("gloo")
"""
MODEL = "import json\n\nWIDTH = 3\n"


def put(host: Host, name: str, text: str) -> None:
    """Write a file into the host's own /tmp."""
    packed = base64.b64encode(text.encode()).decode()
    done = host.exec(
        ["sh", "-c", f"mkdir -p {JOB} && echo {packed} | base64 -d >{JOB}/{shlex.quote(name)}"]
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def bed(lean_bed: Testbed) -> Iterator[Testbed]:
    """Two hosts, each with the same script in its own /tmp."""
    for host in lean_bed.hosts:
        put(host, "train.py", TRAIN)
        put(host, "model.py", MODEL)
    yield lean_bed
    for host in lean_bed.hosts:
        host.exec(["rm", "-rf", JOB])


def check(
    bed: Testbed, command: str, options: str = "--level quick", hosts: str = ""
) -> CheckReport:
    """Check ``command`` as typed; its working folder is the hosts' own."""
    line = f"check --hosts {hosts or bed.names} --ssh-config {bed.ssh_config} --workdir {JOB} {options} {command}"
    request = parse_line(line)
    assert request.target is not None
    plan = make_planner(request, request.target)
    with open_session(request.where) as session:
        ended = list(run_check(request, session, start=short_run, plan=plan))[-1]
    return ended.report


def trouble(report: CheckReport) -> list[tuple[str, str, tuple[str, ...]]]:
    return [
        (each.severity.value, each.check, each.hosts)
        for each in report.findings
        if each.severity in (Severity.WARN, Severity.FAIL)
    ]


def the_finding(report: CheckReport, check_id: str) -> Finding:
    (found,) = [each for each in report.findings if each.check == check_id]
    return found


def test_a_launch_that_would_work_has_no_finding_and_is_proved_as_it_would_run(
    bed: Testbed,
) -> None:
    first, second = bed.host_names
    command = "-- MASTER_PORT=29611 NCCL_DEBUG=WARN python3 train.py --epochs 3"
    report = check(bed, command, "--only script,coll,port,env", f"{first}:2,{second}:1")
    assert trouble(report) == []
    assert report.ok
    target = report.target
    assert (target.launcher, target.world_size, target.port) == ("torch", 3, 29611)
    assert [(each.host, each.ranks) for each in target.hosts] == [(first, (0, 1)), (second, (2,))]
    assert {"NCCL_DEBUG", "MASTER_PORT"} <= set(target.hosts[0].env)
    assert {each.size for each in report.collectives} == {3}
    assert all(each.correct for each in report.collectives)
    assert report.cells[first]["port.master_free"] == "pass"
    assert {report.cells[first][check_id] for check_id in ("script.same", "script.imports")} == {
        "pass"
    }


def test_faults_of_one_host_are_each_one_finding_about_it(bed: Testbed) -> None:
    second = bed.hosts[1]
    put(second, "model.py", MODEL + "import a_module_of_nobody\n")
    second.read_only("/dev/shm")
    report = check(bed, "train.py --data /tmp/job --output /dev/shm/x/out", "--only script")
    assert trouble(report) == [
        ("fail", "script.same", tuple(host.name for host in bed.hosts)),
        ("warn", "script.arguments", (second.name,)),
        ("fail", "script.imports", (second.name,)),
    ]
    assert "differs between the hosts" in the_finding(report, "script.same").summary
    assert "a_module_of_nobody" in the_finding(report, "script.imports").summary
    summary = the_finding(report, "script.arguments").summary
    assert "--output /dev/shm/x/out cannot be written to" in summary


def test_a_script_that_is_missing_or_broken_on_one_host(bed: Testbed) -> None:
    first, second = bed.hosts
    second.exec(["rm", f"{JOB}/train.py"])
    report = check(bed, "train.py", "--only script")
    assert trouble(report) == [("fail", "script.present", (second.name,))]
    for host in (first, second):
        put(host, "train.py", "def f(:\n    pass\n")
    report = check(bed, "train.py", "--only script")
    assert trouble(report) == [("fail", "script.syntax", (first.name, second.name))]
    second.exec(["rm", "-rf", JOB])
    report = check(bed, "train.py", "--only script.workdir,script.present")
    assert trouble(report) == [("fail", "script.workdir", (second.name,))]


def test_the_port_that_the_launch_fixes_is_looked_at_and_no_other(bed: Testbed) -> None:
    first = bed.hosts[0]
    with held_port(first, 29612), held_port(first, 29500):
        command = "-- torchrun --master_port 29612 --nproc_per_node 1 train.py"
        report = check(bed, command, "--only port,script,proc")
        assert trouble(report) == [("fail", "port.master_free", (first.name,))]
        assert "29612" in the_finding(report, "port.master_free").summary
        assert trouble(check(bed, "train.py", "--only port,script")) == []


def test_an_interpreter_that_is_not_there_is_one_finding(bed: Testbed) -> None:
    report = check(bed, "-- /opt/nowhere/bin/python train.py")
    names = tuple(host.name for host in bed.hosts)
    assert trouble(report) == [("fail", "script.interpreter", names)]
    assert report.cells[names[0]]["script.present"] == "pass"
    assert report.cells[names[0]]["net.reach_tcp"] == "pass"


def test_a_rendezvous_at_the_wrong_host_and_what_run_would_refuse(bed: Testbed) -> None:
    first, second = bed.hosts
    command = f"-- torchrun --master_addr {second.address} --master_port 29613 train.py"
    report = check(bed, command, "--only script")
    assert trouble(report) == [("fail", "script.rendezvous", (first.name, second.name))]
    assert f"not {first.name} with rank 0" in the_finding(report, "script.rendezvous").summary
    report = check(bed, "--nic ens9 train.py", "--only script.launch,env")
    assert [found[:2] for found in trouble(report)] == [("fail", "script.launch")]
    assert "has no interface ens9" in the_finding(report, "script.launch").summary


def test_a_working_folder_that_takes_no_file_on_one_host(bed: Testbed) -> None:
    second = bed.hosts[1]
    mounts = f"mount --bind {JOB} {JOB} && mount -o remount,bind,ro {JOB}"
    assert second.exec(["sh", "-c", mounts]).returncode == 0
    try:
        report = check(bed, "train.py", "--only script,fs,disk --level standard")
    finally:
        second.exec(["umount", JOB])
    # A disk that other tests use, too, may be slow meanwhile.
    told = [each for each in trouble(report) if each[1] != "fs.speed"]
    assert told == [("warn", "fs.writable", (second.name,))]
    assert "Read-only file system" in the_finding(report, "fs.writable").seen
    assert report.cells[second.name]["fs.speed"] in ("pass", "warn"), "it is measured"
    for host in bed.hosts:
        listed = host.exec(["ls", "-A", JOB, "/tmp"])
        assert ".distconsole-check" not in str(listed.stdout)


def test_data_on_a_filesystem_that_hangs_is_one_failure_and_holds_up_nobody(bed: Testbed) -> None:
    second = bed.hosts[1]
    with stuck_folder(second):
        report = check(bed, f"train.py --data {STUCK}/x", "--only script,fs")
    assert trouble(report) == [
        ("fail", "fs.mounts", (second.name,)),
        ("warn", "script.arguments", (bed.hosts[0].name,)),
    ]
    assert report.cells[second.name]["script.arguments"] == "skipped"
    assert report.cells[second.name]["script.same"] == "pass"


@pytest.fixture
def ipv6_bed(bed: Testbed) -> Iterator[Testbed]:
    """The hosts have no IPv4 address: they, the console and ssh_config know one another by IPv6."""
    _, second, third, _ = bed.console_address.split(".")
    of = {host: f"fd00:{second}:{third}::{number}" for number, host in enumerate(bed.hosts, 1)}
    console = [f"fd00:{second}:{third}::fe/64", "dev", bed.uplink]
    subprocess.run(["ip", "addr", "add", *console, "nodad"], check=True)
    names = "".join(f"{address} {host.name}\n" for host, address in of.items())
    config, keys = before = bed.ssh_config.read_text(), bed.known_hosts.read_text()
    for host, address in of.items():
        host.wrong_etc_hosts(f"127.0.0.1 localhost\n::1 localhost\n{names}")
        host.exec(f"ip addr add {address}/64 dev eth0 nodad && ip -4 addr flush dev eth0")
        host.exec("ip link set eth1 down && ip -4 addr flush dev eth1")
        config = config.replace(f"HostName {host.address}\n", f"HostName {address}\n")
        keys = keys.replace(f",{host.address},", f",{address},")
    bed.ssh_config.write_text(config)
    bed.known_hosts.write_text(keys)
    yield bed
    bed.ssh_config.write_text(before[0])
    bed.known_hosts.write_text(before[1])
    subprocess.run(["ip", "addr", "del", *console], check=True)
    bed.reset()


@pytest.mark.torch_ranks
@pytest.mark.mpi
def test_on_hosts_of_ipv6_alone_nothing_fails_that_the_launch_does_not_use(
    ipv6_bed: Testbed,
) -> None:
    """Horovod and Open MPI are there, too: horovodrun knows no IPv6, mpirun of Open MPI 4 alone starts ranks by it."""
    assert trouble(check(ipv6_bed, "train.py")) == []
    code, _, told = perform(ipv6_bed, "run", "--launcher", "mpi", "--workdir", JOB, "train.py")
    assert code == (0 if mpirun_is("(Open MPI) 4") else 2), told
    assert ("between hosts that have IPv6 addresses alone" in told) == (code == 2)
