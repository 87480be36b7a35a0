"""Hosts without namespaces: what they can do, as root and as a user who is not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed import LoopbackBed, Testbed, missing_on_loopback
from testbed.keeper import marked_processes, wait_for


@pytest.fixture
def loopback() -> Iterator[LoopbackBed]:
    if reason := missing_on_loopback():
        pytest.skip(reason)
    with LoopbackBed(hosts=2) as bed:
        yield bed


def test_each_host_has_its_own_home_and_node_folder(loopback: LoopbackBed) -> None:
    homes = [loopback.ssh(name, "cd && pwd").stdout.strip() for name in loopback.host_names]
    assert homes == [host.home for host in loopback.hosts]
    assert len({host.node_dir for host in loopback.hosts}) == 2


def test_sessions_run_the_tests_interpreter(loopback: LoopbackBed) -> None:
    printed = loopback.ssh("node1", "python3 -c 'import sys; print(sys.prefix)'").stdout.strip()
    assert printed == sys.prefix


def test_a_power_cut_ends_what_was_started_over_ssh(loopback: LoopbackBed) -> None:
    first, second = loopback.hosts
    for name in loopback.host_names:
        loopback.ssh(name, "setsid sleep 4713 >/dev/null 2>&1 < /dev/null & touch ~/mine")
    assert len(first.processes("sleep 4713")) == 1
    first.power_cut()
    assert first.processes() == []
    assert len(second.processes("sleep 4713")) == 1
    assert "refused" in loopback.ssh("node1", "true", check=False).stderr
    first.power_on()
    assert loopback.ssh("node1", "ls -A ~").stdout == ""


def test_a_power_cut_ends_open_sessions(loopback: LoopbackBed) -> None:
    session = subprocess.Popen(
        ["ssh", *loopback.ssh_options, "node1", "echo on; cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert session.stdout is not None
    assert session.stdout.readline() == b"on\n"
    loopback.hosts[0].power_cut()
    assert session.wait(5) == 255
    session.communicate()


def test_an_ended_bed_leaves_no_process_and_no_folder() -> None:
    if reason := missing_on_loopback():
        pytest.skip(reason)
    with LoopbackBed(hosts=1) as bed:
        bed.ssh("node1", "setsid sleep 4714 >/dev/null 2>&1 < /dev/null &")
        marker = f"DISTCONSOLE_TESTBED_HOST={bed.folder.name}/"
        assert marked_processes(marker)
    assert not bed.folder.exists()
    assert not marked_processes(marker)


def test_a_killed_owner_leaves_nothing_either() -> None:
    if reason := missing_on_loopback():
        pytest.skip(reason)
    program = """
        import sys
        from testbed import LoopbackBed
        bed = LoopbackBed(hosts=1)
        bed.up()
        bed.ssh("node1", "setsid sleep 4715 >/dev/null 2>&1 < /dev/null &")
        print(bed.folder, flush=True)
        sys.stdin.read()
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert folder.exists()
    owner.kill()
    owner.communicate()
    marker = f"DISTCONSOLE_TESTBED_HOST={folder.name}/"
    assert wait_for(lambda: not folder.exists() and not marked_processes(marker), 10)


SYSTEM_PYTHON = "/usr/bin/python3"


def too_old(interpreter: str) -> bool:
    version = "import sys; sys.exit(sys.version_info < (3, 11))"
    return not Path(interpreter).exists() or bool(
        subprocess.run([interpreter, "-c", version], check=False).returncode
    )


@pytest.mark.testbed
@pytest.mark.skipif(too_old(SYSTEM_PYTHON), reason="needs a Python 3.11 that every user can run")
def test_it_needs_no_root(bed: Testbed) -> None:
    host = bed.hosts[0]
    with (host.files / "etc/passwd").open("a") as passwd:
        passwd.write("lab:x:4242:4242::/tmp/lab:/bin/bash\n")
    with (host.files / "etc/shadow").open("a") as shadow:
        shadow.write("lab:*:19000:0:99999:7:::\n")
    host.exec("mkdir -m 755 /tmp/lab /tmp/lab/tests")
    tests = Path(__file__).parents[1]
    host.exec(["mount", "--bind", str(tests), "/tmp/lab/tests"])
    host.exec("chown lab /tmp/lab")
    program = """
        from testbed import LoopbackBed
        with LoopbackBed(hosts=2) as bed:
            print(bed.ssh("node1", "id -un").stdout, bed.ssh("node2", "echo $HOME").stdout, sep="")
    """
    as_user = ["setpriv", "--reuid=4242", "--regid=4242", "--clear-groups", "--"]
    done = host.exec(
        [*as_user, SYSTEM_PYTHON, "-B", "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": "/tmp/lab/tests", "PATH": "/usr/bin:/bin:/usr/sbin"},
        cwd="/tmp/lab",
    )
    name, home = done.stdout.split()
    assert name == "lab"
    assert home.endswith("/node2/home")
